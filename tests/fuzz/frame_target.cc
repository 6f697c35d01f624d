// SPDX-License-Identifier: Apache-2.0
// Frames of /tandem.v1.Data/Stream, as both ends of a stream read them.

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "base/buffer_pool.h"
#include "base/status.h"
#include "rpc/wire/batch.h"
#include "rpc/wire/frame.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/targets.h"

namespace tandem::fuzz {
namespace {

using rpc::Frame;
using rpc::MessageAssembler;

// The expected message of a call.
struct Expected {
  uint64_t total = 0;
  std::string bytes;       // received so far
  std::string sink_bytes;  // received by the message's sink
  bool has_sink = false;
};

// The largest message that is assembled. Both ends of a stream check such a limit before a message begins.
constexpr uint64_t kMaxAssembled = 1 << 20;

void CheckParsed(const std::string& text, const Frame& frame) {
  const v1::StreamFrame& header = frame.header;
  TANDEM_CHECK(header.call() != 0 && header.payload().empty());
  TANDEM_CHECK(frame.payload.size() <= rpc::kMaxFramePayload);
  TANDEM_CHECK(header.error().size() <= rpc::kMaxErrorBytes);
  TANDEM_CHECK(header.message_bytes() == 0 || header.message_bytes() >= frame.payload.size());
  if (header.cancel()) TANDEM_CHECK(header.method().empty() && frame.payload.empty());
  v1::StreamFrame whole;
  TANDEM_CHECK(whole.ParseFromString(text));
  TANDEM_CHECK(whole.payload() == frame.payload.Flatten());
  whole.clear_payload();
  TANDEM_CHECK(whole.SerializeAsString() == header.SerializeAsString());
}

void CheckWhole(const MessageAssembler::Message& message, const Expected& expected) {
  if (expected.has_sink) {
    TANDEM_CHECK(message.bytes.empty() && expected.sink_bytes == expected.bytes);
  } else {
    TANDEM_CHECK(message.bytes.Flatten() == expected.bytes);
  }
}

// Passes the frame to the assembler and checks the result.
void TakeFrame(Frame frame, bool sinks, MessageAssembler* assembler, std::map<uint64_t, Expected>* expected) {
  const uint64_t call = frame.header.call();
  const std::string payload = frame.payload.Flatten();
  if (frame.header.cancel()) {
    assembler->Drop(call);
    expected->erase(call);
  } else if (const auto found = expected->find(call); found != expected->end()) {
    Expected& message = found->second;
    const bool fits = !payload.empty() && payload.size() <= message.total - message.bytes.size();
    const auto whole = assembler->Continue(std::move(frame));
    TANDEM_CHECK(whole.ok() == fits);
    if (fits) message.bytes += payload;
    TANDEM_CHECK(!fits || whole->has_value() == (message.bytes.size() == message.total));
    if (fits && whole->has_value()) CheckWhole(**whole, message);
    if (!fits) assembler->Drop(call);  // a stream would end here
    if (!fits || whole->has_value()) expected->erase(found);
  } else {
    TANDEM_CHECK(!assembler->Continue(frame).ok());
    const uint64_t total = std::max<uint64_t>(frame.header.message_bytes(), payload.size());
    if (total > kMaxAssembled) return;
    Expected& message = (*expected)[call];
    message.total = total;
    message.bytes = payload;
    message.has_sink = sinks && call % 2 == 1;
    MessageAssembler::ChunkConsumer has_sink;
    if (message.has_sink) {
      has_sink = [&message](uint64_t offset, uint64_t of, Bytes chunk) {
        TANDEM_CHECK(offset == message.sink_bytes.size() && of == message.total);
        message.sink_bytes += chunk.Flatten();
      };
    }
    const auto whole = assembler->Begin(std::move(frame), std::move(has_sink));
    TANDEM_CHECK(whole.ok() && whole->has_value() == (payload.size() == total));
    if (whole->has_value()) {
      TANDEM_CHECK((*whole)->bytes.Flatten() == payload);  // a message of one frame: the sink gets nothing
      expected->erase(call);
    }
  }
  uint64_t bytes = 0;
  for (const auto& [number, message] : *expected) {
    TANDEM_CHECK(assembler->Has(number));
    bytes += message.total;
  }
  TANDEM_CHECK(assembler->bytes() == bytes && assembler->Has(call) == expected->contains(call));
}

}  // namespace

// Input: a u8 of options, then messages (frames or batches of frames), each after its size (u16). The
// options:
//
// - bit 0: messages are assembled in the memory of a pool
// - bit 1: those of odd calls are received chunk by chunk
// - the rest: the size of the chunks in which a message is stored
void FuzzFrame(Input input) {
  ByteSource source(input);
  const uint8_t mode = source.Take<uint8_t>();
  BufferPool pool;
  MessageAssembler assembler((mode & 1) != 0 ? &pool : nullptr);
  std::map<uint64_t, Expected> expected;
  while (!source.Rest().empty()) {
    const size_t size = source.Take<uint16_t>();
    const std::string text = ToString(source.Take(size));
    absl::StatusOr<rpc::Frames> frames = rpc::ParseFrames(InChunks(text, mode >> 2));
    if (!frames.ok()) {
      TANDEM_CHECK(frames.status().code() == absl::StatusCode::kInvalidArgument);
      continue;
    }
    v1::StreamFrame stock;
    TANDEM_CHECK(stock.ParseFromString(text));
    TANDEM_CHECK(static_cast<int>(frames->size()) == std::max(1, stock.batch_size()));
    for (size_t i = 0; i < frames->size(); ++i) {
      Frame& frame = (*frames)[i];
      CheckParsed(stock.batch_size() == 0 ? text : stock.batch(static_cast<int>(i)).SerializeAsString(),
                  frame);
      TakeFrame(std::move(frame), (mode & 2) != 0, &assembler, &expected);
    }
  }
}

}  // namespace tandem::fuzz
