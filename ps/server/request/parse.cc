// SPDX-License-Identifier: Apache-2.0
#include "ps/server/request/parse.h"

#include <algorithm>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/row_staleness.h"
#include "ps/server/request/array_reader.h"
#include "ps/wire/id_codec.h"
#include "ps/wire/occurrence_codec.h"
#include "ps/wire/value_codec.h"
#include "ps/wire/version_codec.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {
namespace {

absl::Status CheckOffsets(absl::Span<const uint32_t> offsets, uint64_t num_ids, const SliceLabel& who) {
  if (offsets.front() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": offsets[0] is ", offsets.front(), ", must be 0"));
  }
  for (size_t b = 1; b < offsets.size(); ++b) {
    if (offsets[b] < offsets[b - 1]) {
      return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": offsets[", b, "] is ", offsets[b],
                                                     ", less than offsets[", b - 1, "], which is ",
                                                     offsets[b - 1]));
    }
  }
  if (offsets.back() != num_ids) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": the last offset is ", offsets.back(), ", must be num_ids, ", num_ids));
  }
  return absl::OkStatus();
}

bool IsRateFactor(float factor) { return factor >= 0.0f && factor <= kMaxRateFactor; }

absl::Status RateFactorError(float factor, const std::string& who) {
  return absl::InvalidArgumentError(absl::StrCat(who, ": learning_rate_factor ", factor,
                                                 " must be finite and not negative, and at most 2^20"));
}

// `from` is a PullSlice or a PushSlice.
template <typename SliceHeader>
absl::Status CheckFormats(const SliceHeader& from, const SliceLabel& who) {
  if (!v1::Pooling_IsValid(from.pooling())) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": unknown pooling ", static_cast<int>(from.pooling())));
  }
  if (!v1::ValueFormat_IsValid(from.values())) {
    return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": unknown value format ",
                                                   static_cast<int>(from.values()), ", expected 0 to 3"));
  }
  return absl::OkStatus();
}

// Reads the payload of one request, slice by slice.
class SliceParser {
 public:
  SliceParser(const RequestHeader& header, const ParseOptions& options)
      : worker_(header.worker), options_(options), reader_(header.payload, options.buffers) {}

  absl::Status Parse(v1::PullSlice& from, ParsedSlice* slice) {
    const size_t before = reader_.remaining();
    const SliceLabel who = Start(from, slice);
    TANDEM_RETURN_IF_ERROR(CheckFormats(from, who));
    TANDEM_RETURN_IF_ERROR(ReadIds(from, who, slice));
    TANDEM_RETURN_IF_ERROR(ReadOffsets(from.num_bags(), who, slice));
    TANDEM_RETURN_IF_ERROR(ReadVersions(from, who, slice));
    slice->wire_bytes = before - reader_.remaining();
    return absl::OkStatus();
  }

  absl::Status Parse(v1::PushSlice& from, ParsedSlice* slice) {
    const size_t before = reader_.remaining();
    const SliceLabel who = Start(from, slice);
    TANDEM_RETURN_IF_ERROR(CheckFormats(from, who));
    TANDEM_RETURN_IF_ERROR(ReadIds(from, who, slice));
    TANDEM_RETURN_IF_ERROR(ReadOffsets(from.num_bags(), who, slice));
    slice->dim = from.dim();
    TANDEM_RETURN_IF_ERROR(ReadGradients(who, slice));
    TANDEM_RETURN_IF_ERROR(ReadOccurrences(from.occurrence_bytes(), who, slice));
    slice->wire_bytes = before - reader_.remaining();
    slice->pulled_version = from.pulled_version();
    slice->position = {from.place().update(), from.place().stale(), from.place().first()};
    const float factor = from.learning_rate_factor();
    if (!IsRateFactor(factor)) return RateFactorError(factor, who.Text());
    slice->learning_rate_factor = factor == 0.0f ? 1.0f : factor;
    return ReadSegments(from, who, slice);
  }

  // Call once, after the last slice. Gives the memory of copied and decoded arrays to `header`.
  absl::Status Finish(absl::string_view what, RequestHeader* header) {
    if (reader_.remaining() > 0) {
      return absl::InvalidArgumentError(absl::StrCat("worker ", worker_, ": ", what,
                                                     ": payload too long: ", reader_.remaining(),
                                                     " bytes more than the slices need"));
    }
    header->copies = reader_.TakeCopies();
    header->memory_bytes = header->payload.size() + reader_.allocated();
    return absl::OkStatus();
  }

 private:
  template <typename SliceHeader>
  SliceLabel Start(SliceHeader& from, ParsedSlice* slice) {
    slice->table_name = std::move(*from.mutable_table());
    slice->pooling = from.pooling();
    slice->values = from.values();
    return {worker_, slice->table_name};
  }
  template <typename SliceHeader>
  absl::Status ReadIds(const SliceHeader& from, const SliceLabel& who, ParsedSlice* slice);
  absl::Status ReadOffsets(uint64_t num_bags, const SliceLabel& who, ParsedSlice* slice);
  absl::Status ReadVersions(const v1::PullSlice& from, const SliceLabel& who, ParsedSlice* slice);
  absl::Status ReadGradients(const SliceLabel& who, ParsedSlice* slice);
  absl::Status ReadOccurrences(uint32_t width, const SliceLabel& who, ParsedSlice* slice);
  absl::Status ReadSegments(const v1::PushSlice& from, const SliceLabel& who, ParsedSlice* slice);
  void DecodeGradients(uint64_t rows, ParsedSlice* slice);

  const uint32_t worker_;
  const ParseOptions& options_;
  ArrayReader reader_;
  uint64_t unpacked_bytes_ = 0;  // of all packed ids so far
  uint64_t expanded_bytes_ = 0;  // of the gradients of all bags so far, one gradient for each id
};

template <typename SliceHeader>
absl::Status SliceParser::ReadIds(const SliceHeader& from, const SliceLabel& who, ParsedSlice* slice) {
  const uint64_t count = from.num_ids();
  if (from.ids() == v1::IDS_RAW) {
    if (from.id_bytes() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(who.Text(), ": id_bytes is ", from.id_bytes(), " with raw ids, must be 0"));
    }
    if (!reader_.Copy(count, &slice->ids)) {
      return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": payload too short: num_ids is ", count,
                                                     ", ", reader_.remaining(), " bytes are left"));
    }
    return absl::OkStatus();
  }
  if (from.ids() != v1::IDS_PACKED) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": unknown id format ", static_cast<int>(from.ids()), ", expected 0 or 1"));
  }
  // Checked before memory is allocated: few bytes can hold many ids, and a request many such slices.
  if (count > (options_.max_message_bytes - unpacked_bytes_) / sizeof(uint64_t)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        who.Text(), ": ", count, " ids need more than the message limit of ", options_.max_message_bytes,
        " bytes, of which those before take ", unpacked_bytes_, ": send fewer at a time"));
  }
  unpacked_bytes_ += count * sizeof(uint64_t);
  if (from.id_bytes() < MinPackedBytes(count) || from.id_bytes() > MaxPackedBytes(count)) {
    return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": id_bytes is ", from.id_bytes(), ", but ",
                                                   count, " ids are packed in ", MinPackedBytes(count),
                                                   " to ", MaxPackedBytes(count)));
  }
  absl::Span<const char> packed;
  if (!reader_.Copy(from.id_bytes(), &packed)) {
    return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": payload too short: id_bytes is ",
                                                   from.id_bytes(), ", ", reader_.remaining(),
                                                   " bytes are left"));
  }
  uint64_t* const ids = reader_.Allocate<uint64_t>(count);
  slice->ids = absl::MakeConstSpan(ids, count);
  if (absl::Status status = UnpackIds({packed.data(), packed.size()}, count, ids); !status.ok()) {
    return Annotate(status, who.Text());
  }
  return absl::OkStatus();
}

absl::Status SliceParser::ReadOffsets(uint64_t num_bags, const SliceLabel& who, ParsedSlice* slice) {
  if (slice->pooling == v1::NONE) {
    if (num_bags == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": num_bags is ", num_bags, " without pooling, must be 0"));
  }
  // Compared first: num_bags + 1 must not overflow.
  if (num_bags >= reader_.remaining() / sizeof(uint32_t) || !reader_.Copy(num_bags + 1, &slice->offsets)) {
    return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": payload too short for the offsets of ",
                                                   num_bags, " bags: ", reader_.remaining(),
                                                   " bytes are left"));
  }
  return CheckOffsets(slice->offsets, slice->ids.size(), who);
}

absl::Status SliceParser::ReadVersions(const v1::PullSlice& from, const SliceLabel& who, ParsedSlice* slice) {
  if (!from.conditional()) return absl::OkStatus();
  if (slice->pooling != v1::NONE) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": a conditional pull of pooled rows: copies are of single rows"));
  }
  if (from.unasked_rows() > kMaxLocallyServedRows) {
    return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": unasked_rows is ", from.unasked_rows(),
                                                   ", must be at most ", kMaxLocallyServedRows));
  }
  const VersionCoding coding{.bits = from.version_bits(), .base = from.version_base()};
  if (coding.bits < 1 || coding.bits > 32) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": version_bits is ", coding.bits, ", must be in 1 .. 32"));
  }
  const uint64_t bytes = PackedVersionBytes(slice->ids.size(), coding.bits);
  absl::string_view packed;
  if (!reader_.ReadBytes(bytes, &packed)) {
    return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": payload too short: the versions of ",
                                                   slice->ids.size(), " copies need ", bytes, " bytes, ",
                                                   reader_.remaining(), " are left"));
  }
  uint32_t* const versions = reader_.Allocate<uint32_t>(slice->ids.size());
  UnpackVersions(packed.data(), slice->ids.size(), coding, versions);
  slice->versions = absl::MakeConstSpan(versions, slice->ids.size());
  slice->conditional = true;
  slice->max_age = from.max_age();
  slice->generation = from.generation();
  slice->locally_served_rows = from.unasked_rows();
  return absl::OkStatus();
}

absl::Status SliceParser::ReadGradients(const SliceLabel& who, ParsedSlice* slice) {
  if (slice->dim == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": gradients of dim 0, must be of the table's dim"));
  }
  // The gradients of bags are later expanded to one for each id: a small message can need much memory.
  const uint64_t expanded = slice->pooling == v1::NONE ? 0 : expanded_bytes_;
  if (slice->ids.size() > (options_.max_message_bytes - expanded) / sizeof(float) / slice->dim) {
    return absl::ResourceExhaustedError(absl::StrCat(
        who.Text(), ": the gradients of ", slice->ids.size(), " ids need more than the message limit of ",
        options_.max_message_bytes, " bytes: push fewer at a time"));
  }
  if (slice->pooling != v1::NONE) expanded_bytes_ += slice->ids.size() * slice->dim * sizeof(float);
  const uint64_t rows = slice->rows();
  const size_t row_bytes = RowBytes(slice->values, slice->dim);
  if (rows > reader_.remaining() / row_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": payload too short for ", rows, " gradients of dim ", slice->dim, " as ",
                     Name(slice->values), ": ", reader_.remaining(), " bytes are left"));
  }
  if (slice->values == v1::VALUES_F32) {
    reader_.Read(rows * slice->dim, &slice->gradients);
    slice->largest_gradient = LargestMagnitude(slice->gradients);
  } else {
    reader_.ReadBytes(rows * row_bytes, &slice->encoded_gradients);
    DecodeGradients(rows, slice);
  }
  return absl::OkStatus();
}

absl::Status SliceParser::ReadOccurrences(uint32_t width, const SliceLabel& who, ParsedSlice* slice) {
  if (width == 0) return absl::OkStatus();
  if (slice->pooling != v1::NONE) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": occurrence_bytes is ", width, " with pooling, must be 0"));
  }
  if (!IsOccurrenceWidth(width)) {
    return absl::InvalidArgumentError(
        absl::StrCat(who.Text(), ": occurrence_bytes is ", width, ", must be 0, 1, 2 or 4"));
  }
  const size_t count = slice->ids.size();
  absl::string_view packed;
  if (!reader_.ReadBytes(PackedOccurrenceBytes(count, width), &packed)) {
    return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": payload too short: the occurrences of ",
                                                   count, " ids need ", PackedOccurrenceBytes(count, width),
                                                   " bytes, ", reader_.remaining(), " are left"));
  }
  uint32_t* const occurrences = reader_.Allocate<uint32_t>(count);
  UnpackOccurrences(packed.data(), count, width, occurrences);
  slice->occurrences = absl::MakeConstSpan(occurrences, count);
  const auto zero = std::find(occurrences, occurrences + count, 0u);
  if (zero == occurrences + count) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": id ", slice->ids[zero - occurrences],
                                                 " has 0 occurrences, must be at least 1"));
}

absl::Status SliceParser::ReadSegments(const v1::PushSlice& from, const SliceLabel& who, ParsedSlice* slice) {
  if (from.segment_ends_size() > static_cast<int>(kMaxPushSegments)) {
    return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": ", from.segment_ends_size(),
                                                   " segments, must be at most ", kMaxPushSegments));
  }
  uint64_t before = 0;
  for (int s = 0; s < from.segment_ends_size(); ++s) {
    const uint64_t end = from.segment_ends(s);
    if (end < before || end > slice->ids.size()) {
      return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": segment_ends[", s, "] is ", end,
                                                     ", must be in ", before, " .. ", slice->ids.size()));
    }
    slice->segment_ends.push_back(static_cast<uint32_t>(end));
    before = end;
  }
  if (from.segment_ends_size() > 0 && before != slice->ids.size()) {
    return absl::InvalidArgumentError(absl::StrCat(who.Text(), ": the last of segment_ends is ", before,
                                                   ", must be num_ids, ", slice->ids.size()));
  }
  return absl::OkStatus();
}

// Decodes in blocks that are small enough to be checked while they are in the first-level cache.
void SliceParser::DecodeGradients(uint64_t rows, ParsedSlice* slice) {
  const uint32_t dim = slice->dim;
  const size_t row_bytes = RowBytes(slice->values, dim);
  const size_t block = std::max<size_t>(1, 4096 / dim);
  float* const to = reader_.Allocate<float>(rows * dim);
  slice->gradients = absl::MakeConstSpan(to, rows * dim);
  uint32_t largest = 0;  // magnitudes order as their bits do, NaN last
  for (uint64_t row = 0; row < rows; row += block) {
    const size_t n = std::min<uint64_t>(block, rows - row);
    DecodeRows(slice->values, slice->encoded_gradients.data() + row * row_bytes, nullptr, n, dim,
               to + row * dim);
    const float magnitude = LargestMagnitude(slice->gradients.subspan(row * dim, n * dim));
    largest = std::max(largest, absl::bit_cast<uint32_t>(magnitude));
  }
  slice->largest_gradient = absl::bit_cast<float>(largest);
}

// Decodes `wire`, and reads the fields that pulls and pushes share.
template <typename Message>
absl::Status ParseHeader(const Bytes& wire, Message* message, RequestHeader* header) {
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(wire, message, &header->payload, kMaxHeaderBytes));
  header->worker = message->worker();
  header->step = message->step();
  if (header->step < kMaxStep) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("worker ", header->worker, ": step ", header->step, " is not below 2^62"));
}

template <typename Message>
absl::Status ParseSlices(absl::string_view what, Message& message, const ParseOptions& options,
                         ParsedRequest* request) {
  if (message.slices_size() > kMaxSlices) {
    return absl::ResourceExhaustedError(absl::StrCat("worker ", request->worker, ": ", what, " of ",
                                                     message.slices_size(), " slices, at most ", kMaxSlices,
                                                     " are accepted: send several requests"));
  }
  SliceParser parser(*request, options);
  request->slices.resize(message.slices_size());
  for (int s = 0; s < message.slices_size(); ++s) {
    TANDEM_RETURN_IF_ERROR(parser.Parse(*message.mutable_slices(s), &request->slices[s]));
  }
  return parser.Finish(what, request);
}

}  // namespace

std::string SliceLabel::Text() const { return absl::StrCat("worker ", worker, ": table '", table, "'"); }

absl::StatusOr<ParsedRequest> ParsePull(const Bytes& wire, const ParseOptions& options) {
  v1::PullRequest message;
  ParsedRequest request;
  TANDEM_RETURN_IF_ERROR(ParseHeader(wire, &message, &request));
  request.read_only = message.read_only();
  constexpr uint64_t kLongestLagUs = uint64_t{1} << 40;  // twelve days
  request.max_lag = absl::Microseconds(std::min(message.max_lag_us(), kLongestLagUs));
  TANDEM_RETURN_IF_ERROR(ParseSlices("pull", message, options, &request));
  return request;
}

absl::StatusOr<ParsedRequest> ParsePush(const Bytes& wire, const ParseOptions& options) {
  v1::PushRequest message;
  ParsedRequest request;
  TANDEM_RETURN_IF_ERROR(ParseHeader(wire, &message, &request));
  request.epoch = message.epoch();
  request.sequence = message.sequence();
  request.deferred_gradients = message.held_back();
  const float factor = message.learning_rate_factor();
  if (!IsRateFactor(factor)) return RateFactorError(factor, absl::StrCat("worker ", request.worker));
  request.learning_rate_factor = factor == 0.0f ? 1.0f : factor;
  const float share = message.batch_share();
  if (!(share >= 0.0f && share <= 1.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker ", request.worker, ": batch_share ", share, " must be in (0, 1], or 0 for 1"));
  }
  request.batch_share = share == 0.0f ? 1.0f : share;
  if (message.slices_size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", request.worker, ": push of step ", request.step,
                                                   " names no table (an empty slice of each will do)"));
  }
  TANDEM_RETURN_IF_ERROR(ParseSlices("push", message, options, &request));
  return request;
}

}  // namespace tandem::ps
