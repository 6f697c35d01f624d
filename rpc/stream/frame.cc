#include "rpc/stream/frame.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rpc/codec/bulk_codec.h"

namespace tandem::rpc {
namespace {

constexpr size_t kMessageOverhead = 256;  // of a queued message beside its bytes, about

// A piece that leaves less than half a frame behind takes it along: a frame of few bytes costs as much as a
// call.
size_t PieceOf(size_t rest) { return rest <= kFramePayload + kFramePayload / 2 ? rest : kFramePayload; }

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

absl::StatusOr<std::optional<MessageAssembler::Message>> MessageAssembler::Begin(Frame frame) {
  const uint64_t total = frame.header.message_bytes();
  if (total == 0 || total == frame.payload.size()) {
    return Message{.header = std::move(frame.header), .bytes = std::move(frame.payload)};
  }
  const uint64_t call = frame.header.call();
  if (total < frame.payload.size()) return Broken(call, "it holds more than the whole message");
  bytes_ += total;
  partial_.emplace(call, Message{.header = std::move(frame.header), .bytes = std::move(frame.payload)});
  return std::nullopt;
}

absl::StatusOr<std::optional<MessageAssembler::Message>> MessageAssembler::Continue(Frame frame) {
  const uint64_t call = frame.header.call();
  const auto found = partial_.find(call);
  if (found == partial_.end()) return Broken(call, "it continues a message that never began");
  Message& message = found->second;
  const uint64_t total = message.header.message_bytes();
  if (frame.payload.empty()) return Broken(call, "it continues a message and is empty");
  if (frame.payload.size() > total - message.bytes.size()) {
    return Broken(call,
                  absl::StrCat("with its ", frame.payload.size(), " bytes the message has ",
                               message.bytes.size() + frame.payload.size(), ", it was to have ", total));
  }
  message.bytes.Append(std::move(frame.payload));
  if (message.bytes.size() < total) return std::nullopt;
  Message whole = std::move(message);
  bytes_ -= total;
  partial_.erase(found);
  return whole;
}

void MessageAssembler::Drop(uint64_t call) {
  const auto found = partial_.find(call);
  if (found == partial_.end()) return;
  bytes_ -= found->second.header.message_bytes();
  partial_.erase(found);
}

void FrameQueue::Add(v1::StreamFrame header, Bytes message) {
  if (PieceOf(message.size()) < message.size()) header.set_message_bytes(message.size());
  bytes_ += message.size() + kMessageOverhead;
  messages_.push_back({.header = std::move(header), .bytes = std::move(message)});
}

Bytes FrameQueue::Next() {
  Message message = std::move(messages_.front());
  messages_.pop_front();
  const size_t rest = message.bytes.size() - message.sent;
  const size_t piece = PieceOf(rest);
  bytes_ -= piece;
  if (piece == message.bytes.size()) {
    bytes_ -= kMessageOverhead;
    return EncodeBulk(message.header, std::move(message.bytes));
  }
  Bytes wire = EncodeBulk(message.header, message.bytes.Sub(message.sent, piece));
  message.sent += piece;
  if (piece == rest) {
    bytes_ -= kMessageOverhead;
  } else {
    const uint64_t call = message.header.call();
    message.header = v1::StreamFrame();
    message.header.set_call(call);
    messages_.push_back(std::move(message));
  }
  return wire;
}

FrameQueue::Dropped FrameQueue::Drop(uint64_t call) {
  Dropped dropped = Dropped::kNothing;
  for (auto it = messages_.begin(); it != messages_.end();) {
    if (it->header.call() != call) {
      ++it;
      continue;
    }
    dropped = it->sent > 0 ? Dropped::kPartlySent : Dropped::kUnsent;
    bytes_ -= it->bytes.size() - it->sent + kMessageOverhead;
    it = messages_.erase(it);
  }
  return dropped;
}

void FrameQueue::Clear() {
  messages_.clear();
  bytes_ = 0;
}

}  // namespace tandem::rpc
