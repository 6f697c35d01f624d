// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire/batch.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "google/protobuf/io/coded_stream.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::rpc {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr char kBatchTag = (v1::StreamFrame::kBatchFieldNumber << 3) | 2;  // wire type 2: length-delimited
static_assert(v1::StreamFrame::kBatchFieldNumber < 16);                    // the tag takes one byte
static_assert(kUsualBatchBytes + 2 * kMaxBatchedMessage < kMaxBatchBytes);

absl::Status Broken(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("broken batch of stream frames: ", what));
}

bool BeginsBatch(const Bytes& wire) { return !wire.empty() && wire.slices().front().data()[0] == kBatchTag; }

}  // namespace

void BatchWriter::Add(const v1::StreamFrame& header, const Bytes& payload) {
  uint8_t length[10];
  const size_t digits =
      CodedOutputStream::WriteVarint64ToArray(BulkSize(header, payload.size()), length) - length;
  wire_.push_back(kBatchTag);
  wire_.append(reinterpret_cast<const char*>(length), digits);
  AppendBulk(header, payload, &wire_);
}

absl::StatusOr<Frames> ParseFrames(const Bytes& wire) {
  Frames frames;
  if (!BeginsBatch(wire)) {
    TANDEM_ASSIGN_OR_RETURN(Frame frame, ParseFrame(wire));
    frames.push_back(std::move(frame));
    return frames;
  }
  if (wire.size() > kMaxBatchBytes) {
    return Broken(absl::StrCat("it has ", wire.size(), " bytes, at most ", kMaxBatchBytes, " are allowed"));
  }
  std::string scratch;
  BytesReader reader(wire);
  const char* const text = reader.Contiguous(wire.size(), 1, &scratch);
  CodedInputStream input(reinterpret_cast<const uint8_t*>(text), static_cast<int>(wire.size()));
  while (static_cast<size_t>(input.CurrentPosition()) < wire.size()) {
    const int begin = input.CurrentPosition();
    if (text[begin] != kBatchTag) {
      return Broken(
          absl::StrCat("at byte ", begin, " of ", wire.size(), " there is something else than a frame"));
    }
    int length;
    if (!input.Skip(1) || !input.ReadVarintSizeAsInt(&length) ||
        static_cast<size_t>(length) > wire.size() - input.CurrentPosition()) {
      return Broken(absl::StrCat("the frame at byte ", begin, " of ", wire.size(), " is cut off"));
    }
    if (frames.size() == kMaxBatchFrames) {
      return Broken(absl::StrCat("it has more than ", kMaxBatchFrames, " frames"));
    }
    TANDEM_ASSIGN_OR_RETURN(Frame frame,
                            ParseFrame(Bytes(Slice::Unowned(text + input.CurrentPosition(), length))));
    if (!frame.payload.empty()) frame.payload = Bytes(frame.payload.Flatten());
    frames.push_back(std::move(frame));
    input.Skip(length);
  }
  return frames;
}

}  // namespace tandem::rpc
