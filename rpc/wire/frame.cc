// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire/frame.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::rpc {
namespace {

constexpr size_t kLine = 64;

absl::Status Broken(uint64_t call, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("broken stream frame of call ", call, ": ", what));
}

}  // namespace

absl::StatusOr<Frame> ParseFrame(const Bytes& wire) {
  Frame frame;
  TANDEM_RETURN_IF_ERROR(DecodeBulk(wire, &frame.header, &frame.payload));
  const v1::StreamFrame& header = frame.header;
  const uint64_t call = header.call();
  if (call == 0) return Broken(call, "calls are numbered from 1");
  if (header.batch_size() > 0) return Broken(call, "it holds a batch: that stands alone");
  if (frame.payload.size() > kMaxFramePayload) {
    return Broken(call, absl::StrCat("its payload has ", frame.payload.size(), " bytes, a frame's may have ",
                                     kMaxFramePayload, "; longer messages take several frames"));
  }
  if (header.cancel() &&
      (!header.method().empty() || header.message_bytes() != 0 || !frame.payload.empty())) {
    return Broken(call, "it cancels the call and carries a message as well");
  }
  if (header.message_bytes() != 0 && header.message_bytes() < frame.payload.size()) {
    return Broken(call, absl::StrCat("its payload has ", frame.payload.size(),
                                     " bytes, the whole message is to have ", header.message_bytes()));
  }
  if (header.error().size() > kMaxErrorBytes) {
    return Broken(call, absl::StrCat("its error has ", header.error().size(), " bytes, at most ",
                                     kMaxErrorBytes, " are allowed"));
  }
  return frame;
}

absl::StatusOr<std::optional<MessageAssembler::Message>> MessageAssembler::Begin(Frame frame,
                                                                                 ChunkConsumer taker) {
  const uint64_t total = frame.header.message_bytes();
  if (total == 0 || total == frame.payload.size()) {
    return Message{.header = std::move(frame.header), .bytes = std::move(frame.payload)};
  }
  const uint64_t call = frame.header.call();
  if (total < frame.payload.size()) return Broken(call, "it holds more than the whole message");
  Partial partial{.message = {.header = std::move(frame.header)}, .taker = std::move(taker)};
  if (!partial.taker && pool_ != nullptr) {
    // The buffer is placed so that the message ends at the end of a cache line. Most of a long message is the
    // arrays at its end, which are used in place.
    const uint64_t lines = (total + kLine - 1) / kLine * kLine;
    partial.memory = pool_->Get(lines);
    partial.to = partial.memory.get() + (lines - total);
  }
  Add(&partial, std::move(frame.payload));
  bytes_ += total;
  partial_.emplace(call, std::move(partial));
  return std::nullopt;
}

absl::StatusOr<std::optional<MessageAssembler::Message>> MessageAssembler::Continue(Frame frame) {
  const uint64_t call = frame.header.call();
  const auto found = partial_.find(call);
  if (found == partial_.end()) return Broken(call, "it continues a message that never began");
  Partial& partial = found->second;
  const uint64_t total = partial.message.header.message_bytes();
  if (frame.payload.empty()) return Broken(call, "it continues a message and is empty");
  if (frame.payload.size() > total - partial.received) {
    return Broken(call, absl::StrCat("with its ", frame.payload.size(), " bytes the message has ",
                                     partial.received + frame.payload.size(), ", it was to have ", total));
  }
  Add(&partial, std::move(frame.payload));
  if (partial.received < total) return std::nullopt;
  Message whole = std::move(partial.message);
  if (partial.memory != nullptr) {
    const char* const data = partial.to;
    whole.bytes = Bytes(Slice(std::move(partial.memory), data, total));
  }
  bytes_ -= total;
  partial_.erase(found);
  return whole;
}

void MessageAssembler::Add(Partial* partial, Bytes payload) {
  const uint64_t offset = partial->received;
  partial->received += payload.size();
  if (partial->taker) {
    partial->taker(offset, partial->message.header.message_bytes(), std::move(payload));
  } else if (partial->memory != nullptr) {
    BytesReader(payload).Copy(partial->to + offset, payload.size());
  } else {
    partial->message.bytes.Append(std::move(payload));
  }
}

uint64_t MessageAssembler::Drop(uint64_t call) {
  const auto found = partial_.find(call);
  if (found == partial_.end()) return 0;
  const uint64_t received = found->second.received;
  bytes_ -= found->second.message.header.message_bytes();
  partial_.erase(found);
  return received;
}

}  // namespace tandem::rpc
