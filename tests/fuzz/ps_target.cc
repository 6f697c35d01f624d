// SPDX-License-Identifier: Apache-2.0
// Pulls and pushes. The first byte of an input tells its form:
//
//   even  the rest is a request as it is sent: u8 chunk size, then the message;
//   odd   the request is built from the numbers that follow, with the rest as its payload, so that the
//         fuzzer need not find out about headers (see MakeSlice).
//
// The second bit: the transport has memory for the response.

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

#include "rpc/wire/bulk_codec.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/ps_under_test.h"
#include "tests/fuzz/targets.h"

namespace tandem::fuzz {
namespace {

namespace v1 = ::tandem::v1;

// Returns mostly small numbers, and now and then a huge one.
uint64_t TakeCount(ByteSource& source) {
  const uint8_t small = source.Take<uint8_t>();
  return small < 250 ? small : source.Take<uint64_t>();
}

template <typename Slice>
void MakeSlice(ByteSource& source, Slice* slice) {
  const std::string& table = PsUnderTest::Tables()[source.Take<uint8_t>() % PsUnderTest::Tables().size()];
  slice->set_table(table);
  const uint8_t formats = source.Take<uint8_t>();
  slice->set_values(static_cast<v1::ValueFormat>(formats & 7));
  slice->set_pooling(static_cast<v1::Pooling>(formats >> 3 & 3));
  slice->set_ids(static_cast<v1::IdFormat>(formats >> 5 & 1));
  slice->set_num_ids(TakeCount(source));
  if (slice->pooling() != v1::NONE) slice->set_num_bags(TakeCount(source));
  if (slice->ids() != v1::IDS_RAW) slice->set_id_bytes(TakeCount(source));
  if constexpr (std::is_same_v<Slice, v1::PushSlice>) {
    slice->set_dim((formats & 0x80) != 0 ? source.Take<uint32_t>() : PsUnderTest::DimOf(table));
    if ((formats & 0x40) != 0) {
      slice->set_learning_rate_factor(source.Take<float>());
      slice->set_pulled_version(source.Take<uint64_t>());
      const uint8_t more = source.Take<uint8_t>();
      for (uint8_t s = more % 4; s > 0; --s) slice->add_segment_ends(TakeCount(source));
      slice->set_occurrence_bytes(more / 4 % 8);
    }
  } else if ((formats & 0x40) != 0) {
    slice->set_conditional(true);
    slice->set_max_age(TakeCount(source));
    slice->set_version_bits(source.Take<uint8_t>());
    slice->set_version_base(source.Take<uint32_t>());
    slice->set_generation(source.Take<uint64_t>());
  }
}

template <typename Request>
void Run(const std::string& method, PsUnderTest& server, Input input) {
  ByteSource source(input);
  const uint8_t form = source.Take<uint8_t>();
  const bool made = (form & 1) != 0, has_response_memory = (form & 2) != 0;
  const size_t chunk = source.Take<uint8_t>();
  Request header;
  Bytes payload;
  if (!made) {
    const std::string text = ToString(source.Rest());
    const Bytes wire = InChunks(text, chunk);
    server.Call(method, wire, has_response_memory);
    if (!rpc::DecodeBulk(wire, &header, &payload).ok()) return;
  } else {
    header.set_worker(source.Take<uint8_t>());
    header.set_step(TakeCount(source));
    const uint8_t slices = source.Take<uint8_t>() % 4;
    for (uint8_t s = 0; s < slices; ++s) MakeSlice(source, header.add_slices());
    payload = InChunks(ToString(source.Rest()), chunk);
  }
  if constexpr (std::is_same_v<Request, v1::PushRequest>) {
    // A sequence number that the fence lets pass.
    header.set_worker(header.worker() % PsUnderTest::kWorkers);
    header.set_epoch(1);
    header.set_sequence(server.next_sequence(header.worker()));
  }
  server.Call(method, rpc::EncodeBulk(header, std::move(payload)), has_response_memory);
}

// One server for all inputs of a process: an input starts from the state that earlier inputs have left.
PsUnderTest& Server() {
  static auto* const server = new PsUnderTest();
  return *server;
}

}  // namespace

void FuzzPull(Input input) { Run<v1::PullRequest>("Pull", Server(), input); }
void FuzzPush(Input input) { Run<v1::PushRequest>("Push", Server(), input); }

}  // namespace tandem::fuzz
