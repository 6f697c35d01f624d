// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_COMMAND_LINE_BUILD_INFO_H_
#define TANDEM_CLI_COMMAND_LINE_BUILD_INFO_H_

namespace tandem::cli {

// The facts about the build of this program that `tandem --version` prints.
struct BuildInfo {
  const char* version;     // "0.1.0"
  const char* commit;      // git's hash, with "-dirty" if files were changed; "unknown" outside a repository
  const char* build_type;  // "Release"
  const char* sanitizers;  // "address,undefined"; empty: none
  const char* compiler;    // "GNU 12.2.0"
  const char* processor;   // "x86_64"
  bool has_rocksdb;
  bool has_prometheus;
};
BuildInfo GetBuildInfo();

}  // namespace tandem::cli

#endif  // TANDEM_CLI_COMMAND_LINE_BUILD_INFO_H_
