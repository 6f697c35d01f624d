// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/targets.h"

namespace tandem::fuzz {

const std::vector<Target>& Targets() {
  static const auto* const targets = new std::vector<Target>{
      {"id_codec", FuzzIdCodec},
      {"value_codec", FuzzValueCodec},
      {"bulk_codec", FuzzBulkCodec},
      {"pull", FuzzPull},
      {"push", FuzzPush},
      {"ring", FuzzRing},
      {"frame", FuzzFrame},
      {"stream_server", FuzzStreamServer, 500},
      {"stream_client", FuzzStreamClient, 500},
  };
  return *targets;
}

}  // namespace tandem::fuzz
