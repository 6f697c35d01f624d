// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_FUZZ_TARGETS_H_
#define TANDEM_TESTS_FUZZ_TARGETS_H_

// The fuzz targets: code that reads bytes of a peer. A target takes any bytes, and aborts if the tested code
// breaks a promise of its header. fuzz_main.cc makes a libFuzzer program of each (scripts/fuzz).
// corpus_test.cc runs all of them over the kept corpus, tests/fuzz/corpus/NAME/, and over mutations of it.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tandem::fuzz {

using Input = absl::Span<const uint8_t>;

struct Target {
  std::string name;
  void (*run)(Input input);
  // The number of mutations that corpus_test.cc runs.
  int mutations = 3000;
};

void FuzzIdCodec(Input input);     // ps/wire/id_codec.h
void FuzzValueCodec(Input input);  // ps/wire/value_codec.h
void FuzzBulkCodec(Input input);   // rpc/wire/bulk_codec.h
void FuzzRing(Input input);        // rpc/shm/record.h
void FuzzFrame(Input input);       // rpc/wire/frame.h
// The server's and the client's end of a stream over a real connection, with a hostile client and a hostile
// server.
void FuzzStreamServer(Input input);
void FuzzStreamClient(Input input);
// The handlers of a parameter server: a refused request changes no table, and an accepted one leaves every
// row finite. ps_target.cc describes the forms of an input.
void FuzzPull(Input input);
void FuzzPush(Input input);

// Returns all targets.
const std::vector<Target>& Targets();

}  // namespace tandem::fuzz

#endif  // TANDEM_TESTS_FUZZ_TARGETS_H_
