// SPDX-License-Identifier: Apache-2.0
// The libFuzzer program of one target, TANDEM_FUZZ_TARGET.

#include <cstddef>
#include <cstdint>

#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Otherwise protobuf logs a line for each message that does not parse.
  static const google::protobuf::LogSilencer* const silence = new google::protobuf::LogSilencer();
  (void)silence;
  tandem::fuzz::TANDEM_FUZZ_TARGET(tandem::fuzz::Input(data, size));
  return 0;
}
