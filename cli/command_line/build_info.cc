// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/build_info.h"

#include "tandem_commit.h"

namespace tandem::cli {

BuildInfo GetBuildInfo() {
  return {.version = TANDEM_VERSION,
          .commit = TANDEM_COMMIT,
          .build_type = TANDEM_BUILD_TYPE,
          .sanitizers = TANDEM_SANITIZERS,
          .compiler = TANDEM_COMPILER,
          .processor = TANDEM_PROCESSOR,
          .has_rocksdb = TANDEM_HAS_ROCKSDB,
          .has_prometheus = TANDEM_HAS_PROMETHEUS};
}

}  // namespace tandem::cli
