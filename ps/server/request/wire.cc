#include "ps/server/request/wire.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ps/server/request/array_reader.h"
#include "ps/wire/id_codec.h"
#include "ps/wire/value_codec.h"
#include "ps/wire/version_codec.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {
namespace {

// "worker 1: table 'user'", the beginning of every message about a slice.
std::string Who(uint32_t worker, const std::string& table) {
  return absl::StrCat("worker ", worker, ": table '", table, "'");
}

absl::Status CheckOffsets(absl::Span<const uint32_t> offsets, uint64_t num_ids, const std::string& who) {
  if (offsets.front() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": offsets[0] is ", offsets.front(), ", must be 0"));
  }
  for (size_t b = 1; b < offsets.size(); ++b) {
    if (offsets[b] < offsets[b - 1]) {
      return absl::InvalidArgumentError(absl::StrCat(who, ": offsets[", b, "] is ", offsets[b],
                                                     ", less than offsets[", b - 1, "], which is ",
                                                     offsets[b - 1]));
    }
  }
  if (offsets.back() != num_ids) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": the last offset is ", offsets.back(), ", must be num_ids, ", num_ids));
  }
  return absl::OkStatus();
}

absl::Status CheckIds(absl::Span<const uint64_t> ids, const ServerTable& table, const WireContext& context,
                      const std::string& who) {
  if (context.shard_map.num_servers() > 1) {
    for (uint64_t id : ids) {
      const uint32_t owner = context.shard_map.OwnerOf(id);
      if (owner != context.server) {
        return absl::FailedPreconditionError(absl::StrCat(who, ": id ", id, " belongs to server ", owner,
                                                          ", this is server ", context.server,
                                                          ": the client's shard map is out of date"));
      }
    }
  }
  if (table.dense()) {
    const uint64_t rows = (table.elements() + table.dim() - 1) / table.dim();
    for (uint64_t id : ids) {
      if (id >= rows) {
        return absl::InvalidArgumentError(
            absl::StrCat(who, ": id ", id, " is outside this dense table of ", rows, " rows"));
      }
    }
  }
  return absl::OkStatus();
}

// Gradients as they came, until all of the request is known to be well-formed.
struct Gradients {
  float largest = 0;          // magnitude
  absl::string_view encoded;  // empty: as floats
};

absl::Status CheckGradients(const ParsedSlice& slice, const Gradients& gradients, uint32_t worker) {
  if (gradients.largest < kMaxGradient) return absl::OkStatus();
  slice.table->counters().AddRefusedPush();
  const size_t at = std::find_if(slice.gradients.begin(), slice.gradients.end(),
                                 [](float g) { return !(std::abs(g) < kMaxGradient); }) -
                    slice.gradients.begin();
  if (at == static_cast<size_t>(slice.gradients.size())) {  // memory that the client writes to meanwhile
    return absl::InvalidArgumentError(absl::StrCat(Who(worker, slice.table->name()),
                                                   ": gradients changed while they were read; push refused"));
  }
  const float value = slice.gradients[at];
  const uint32_t dim = slice.table->dim();
  const uint64_t row = at / dim;
  const std::string which =
      slice.pooling == v1::NONE ? absl::StrCat("id ", slice.ids[row]) : absl::StrCat("bag ", row);
  const std::string what = std::isnan(value)   ? "NaN"
                           : std::isinf(value) ? "Inf"
                                               : absl::StrCat(value, ", beyond 2^60");
  std::string how;
  if (slice.values == v1::VALUES_INT8) {
    float scale;
    std::memcpy(&scale, gradients.encoded.data() + row * RowBytes(slice.values, dim), sizeof(scale));
    how = absl::StrCat(" (int8 with scale ", scale, ")");
  }
  return absl::InvalidArgumentError(absl::StrCat(Who(worker, slice.table->name()), ": gradient of ", which,
                                                 " is ", what, how, "; push refused"));
}

absl::Status CheckRateFactor(float factor, const std::string& who) {
  if (factor >= 0.0f && factor <= kMaxRateFactor) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(who, ": learning_rate_factor ", factor,
                                                 " must be finite and not negative, and at most 2^20"));
}

// `header` is a PullSlice or a PushSlice; *unpacked_bytes: of all packed ids of the request so far.
template <typename SliceHeader>
absl::Status ReadIds(const SliceHeader& header, const std::string& who, const WireContext& context,
                     ArrayReader& reader, uint64_t* unpacked_bytes, ParsedSlice* slice) {
  const uint64_t count = header.num_ids();
  if (header.ids() == v1::IDS_RAW) {
    if (header.id_bytes() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(who, ": id_bytes is ", header.id_bytes(), " with raw ids, must be 0"));
    }
    if (!reader.Copy(count, &slice->ids)) {
      return absl::InvalidArgumentError(absl::StrCat(who, ": payload too short: num_ids is ", count, ", ",
                                                     reader.remaining(), " bytes are left"));
    }
    return absl::OkStatus();
  }
  if (header.ids() != v1::IDS_PACKED) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": unknown id format ", static_cast<int>(header.ids()), ", expected 0 or 1"));
  }
  // Before memory is taken for them: few bytes can hold many ids, and a request many such slices.
  if (count > (context.max_message_bytes - *unpacked_bytes) / sizeof(uint64_t)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(who, ": ", count, " ids need more than the message limit of ", context.max_message_bytes,
                     " bytes, of which those before take ", *unpacked_bytes, ": send fewer at a time"));
  }
  *unpacked_bytes += count * sizeof(uint64_t);
  if (header.id_bytes() < MinPackedBytes(count) || header.id_bytes() > MaxPackedBytes(count)) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": id_bytes is ", header.id_bytes(), ", but ", count,
                                                   " ids are packed in ", MinPackedBytes(count), " to ",
                                                   MaxPackedBytes(count)));
  }
  absl::Span<const char> packed;
  if (!reader.Copy(header.id_bytes(), &packed)) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": payload too short: id_bytes is ",
                                                   header.id_bytes(), ", ", reader.remaining(),
                                                   " bytes are left"));
  }
  uint64_t* const ids = reader.Allocate<uint64_t>(count);
  slice->ids = absl::MakeConstSpan(ids, count);
  if (absl::Status status = UnpackIds({packed.data(), packed.size()}, count, ids); !status.ok())
    return Annotate(status, who);
  return absl::OkStatus();
}

// Blocks small enough to be looked at while they are in the nearest cache.
void DecodeGradients(ParsedSlice* slice, uint64_t rows, ArrayReader& reader, Gradients* gradients) {
  const uint32_t dim = slice->table->dim();
  const size_t row_bytes = RowBytes(slice->values, dim);
  const size_t block = std::max<size_t>(1, 4096 / dim);
  float* const to = reader.Allocate<float>(rows * dim);
  slice->gradients = absl::MakeConstSpan(to, rows * dim);
  uint32_t largest = 0;  // magnitudes order as their bits do, NaN last
  for (uint64_t row = 0; row < rows; row += block) {
    const size_t n = std::min<uint64_t>(block, rows - row);
    DecodeRows(slice->values, gradients->encoded.data() + row * row_bytes, nullptr, n, dim, to + row * dim);
    const float magnitude = LargestMagnitude(slice->gradients.subspan(row * dim, n * dim));
    largest = std::max(largest, absl::bit_cast<uint32_t>(magnitude));
  }
  gradients->largest = absl::bit_cast<float>(largest);
}

absl::Status ReadGradients(const std::string& who, ArrayReader& reader, ParsedSlice* slice,
                           Gradients* gradients) {
  const uint64_t rows = slice->rows();
  const uint32_t dim = slice->table->dim();
  const size_t row_bytes = RowBytes(slice->values, dim);
  if (rows > reader.remaining() / row_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": payload too short for ", rows,
                                                   " gradients of dim ", dim, " as ", Name(slice->values),
                                                   ": ", reader.remaining(), " bytes are left"));
  }
  if (slice->values == v1::VALUES_F32) {
    reader.Read(rows * dim, &slice->gradients);
    gradients->largest = LargestMagnitude(slice->gradients);
  } else {
    reader.ReadBytes(rows * row_bytes, &gradients->encoded);
    DecodeGradients(slice, rows, reader, gradients);
  }
  return absl::OkStatus();
}

// The ids of the slice and, with pooling, its offsets. `header` is a PullSlice or a PushSlice.
template <typename SliceHeader>
absl::Status StartSlice(const SliceHeader& header, uint32_t worker, bool needs_rank,
                        const WireContext& context, ArrayReader& reader, uint64_t* unpacked_bytes,
                        ParsedSlice* slice) {
  absl::StatusOr<std::shared_ptr<ServerTable>> table = context.find(header.table());
  if (!table.ok()) return Annotate(table.status(), absl::StrCat("worker ", worker));
  slice->table = *std::move(table);
  slice->pooling = header.pooling();
  const std::string who = Who(worker, header.table());
  if (needs_rank && worker >= slice->table->num_workers()) {
    return absl::InvalidArgumentError(absl::StrCat(who, " has ", slice->table->num_workers(),
                                                   " workers: ranks below that may pull and push"));
  }
  if (!v1::Pooling_IsValid(header.pooling())) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": unknown pooling ", static_cast<int>(header.pooling())));
  }
  slice->values = header.values();
  if (!v1::ValueFormat_IsValid(header.values())) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": unknown value format ", static_cast<int>(header.values()), ", expected 0 to 3"));
  }
  TANDEM_RETURN_IF_ERROR(ReadIds(header, who, context, reader, unpacked_bytes, slice));
  return CheckIds(slice->ids, *slice->table, context, who);
}

absl::Status ReadOffsets(uint64_t num_bags, const std::string& who, ArrayReader& reader, ParsedSlice* slice) {
  if (slice->pooling == v1::NONE) {
    if (num_bags == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": num_bags is ", num_bags, " without pooling, must be 0"));
  }
  // Compared first: num_bags + 1 must not overflow.
  if (num_bags >= reader.remaining() / sizeof(uint32_t) || !reader.Copy(num_bags + 1, &slice->offsets)) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": payload too short for the offsets of ", num_bags,
                                                   " bags: ", reader.remaining(), " bytes are left"));
  }
  return CheckOffsets(slice->offsets, slice->ids.size(), who);
}

absl::Status ReadVersions(const v1::PullSlice& header, const std::string& who, ArrayReader& reader,
                          ParsedSlice* slice) {
  if (!header.conditional()) return absl::OkStatus();
  if (slice->pooling != v1::NONE) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": a conditional pull of pooled rows: copies are of single rows"));
  }
  if (header.unasked_rows() > kMaxUnaskedRows) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": unasked_rows is ", header.unasked_rows(),
                                                   ", must be at most ", kMaxUnaskedRows));
  }
  const VersionCoding coding{.bits = header.version_bits(), .base = header.version_base()};
  if (coding.bits < 1 || coding.bits > 32) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": version_bits is ", coding.bits, ", must be in 1 .. 32"));
  }
  const uint64_t bytes = PackedVersionBytes(slice->ids.size(), coding.bits);
  absl::string_view packed;
  if (!reader.ReadBytes(bytes, &packed)) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": payload too short: the versions of ",
                                                   slice->ids.size(), " copies need ", bytes, " bytes, ",
                                                   reader.remaining(), " are left"));
  }
  uint32_t* const versions = reader.Allocate<uint32_t>(slice->ids.size());
  UnpackVersions(packed.data(), slice->ids.size(), coding, versions);
  slice->versions = absl::MakeConstSpan(versions, slice->ids.size());
  slice->conditional = true;
  slice->max_age = header.max_age();
  slice->generation = header.generation();
  slice->unasked_rows = header.unasked_rows();
  return absl::OkStatus();
}

absl::Status CheckAllRead(const ArrayReader& reader, uint32_t worker, absl::string_view what) {
  if (reader.remaining() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("worker ", worker, ": ", what, ": payload too long: ",
                                                 reader.remaining(), " bytes more than the slices need"));
}

absl::Status CheckStep(uint64_t step, uint32_t worker) {
  if (step < kMaxStep) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("worker ", worker, ": step ", step, " is not below 2^62"));
}

void Keep(ArrayReader& reader, ParsedRequest* request) {
  request->copies = reader.TakeCopies();
  request->memory_bytes = request->payload.size() + reader.allocated();
}

}  // namespace

absl::StatusOr<ParsedRequest> ParsePull(const Bytes& wire, const WireContext& context) {
  v1::PullRequest header;
  ParsedRequest request;
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(wire, &header, &request.payload));
  const uint32_t worker = request.worker = header.worker();
  request.step = header.step();
  request.read_only = header.read_only();
  TANDEM_RETURN_IF_ERROR(CheckStep(request.step, worker));
  ArrayReader reader(request.payload, context.buffers);
  uint64_t unpacked_bytes = 0;
  uint64_t response_bytes = 0;
  request.slices.resize(header.slices_size());
  for (int s = 0; s < header.slices_size(); ++s) {
    const v1::PullSlice& from = header.slices(s);
    ParsedSlice& slice = request.slices[s];
    const size_t before = reader.remaining();
    TANDEM_RETURN_IF_ERROR(
        StartSlice(from, worker, !request.read_only, context, reader, &unpacked_bytes, &slice));
    const std::string who = Who(worker, from.table());
    TANDEM_RETURN_IF_ERROR(ReadOffsets(from.num_bags(), who, reader, &slice));
    TANDEM_RETURN_IF_ERROR(ReadVersions(from, who, reader, &slice));
    slice.wire_bytes = before - reader.remaining();
    // No overflow: counts are at most the payload's bytes, dim is 32 bits, and the sum is checked slice by
    // slice.
    const size_t row_bytes = RowBytes(slice.values, slice.table->dim());
    const uint64_t bitmap_bytes = slice.conditional ? BitmapBytes(slice.ids.size()) : 0;
    const unsigned __int128 bytes =
        static_cast<unsigned __int128>(slice.rows()) * row_bytes + bitmap_bytes + response_bytes;
    // Rows to be pooled are first gathered as floats.
    const size_t float_bytes = slice.pooling == v1::NONE ? 0 : slice.table->dim() * sizeof(float);
    const unsigned __int128 unpooled = static_cast<unsigned __int128>(slice.ids.size()) * float_bytes;
    if (std::max(bytes, unpooled) > context.max_message_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(who, ": the rows asked for need more than the message limit of ",
                       context.max_message_bytes, " bytes: pull fewer at a time"));
    }
    response_bytes = static_cast<uint64_t>(bytes);
  }
  TANDEM_RETURN_IF_ERROR(CheckAllRead(reader, worker, "pull"));
  request.response_bytes = response_bytes;
  Keep(reader, &request);
  return request;
}

absl::StatusOr<ParsedRequest> ParsePush(const Bytes& wire, const WireContext& context) {
  v1::PushRequest header;
  ParsedRequest request;
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(wire, &header, &request.payload));
  const uint32_t worker = request.worker = header.worker();
  request.step = header.step();
  request.epoch = header.epoch();
  request.sequence = header.sequence();
  request.held_back = header.held_back();
  TANDEM_RETURN_IF_ERROR(CheckStep(request.step, worker));
  const float factor = header.learning_rate_factor();
  TANDEM_RETURN_IF_ERROR(CheckRateFactor(factor, absl::StrCat("worker ", worker)));
  request.learning_rate_factor = factor == 0.0f ? 1.0f : factor;
  if (header.slices_size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, ": push of step ", request.step,
                                                   " names no table (an empty slice of each will do)"));
  }
  ArrayReader reader(request.payload, context.buffers);
  uint64_t unpacked_bytes = 0;
  uint64_t expanded_bytes = 0;  // of the gradients of bags, one for each id
  std::vector<Gradients> gradients(header.slices_size());
  request.slices.resize(header.slices_size());
  for (int s = 0; s < header.slices_size(); ++s) {
    const v1::PushSlice& from = header.slices(s);
    ParsedSlice& slice = request.slices[s];
    const size_t before = reader.remaining();
    TANDEM_RETURN_IF_ERROR(StartSlice(from, worker, true, context, reader, &unpacked_bytes, &slice));
    const std::string who = Who(worker, from.table());
    if (from.dim() != slice.table->dim()) {
      return absl::InvalidArgumentError(
          absl::StrCat(who, ": gradients of dim ", from.dim(), ", but its dim is ", slice.table->dim()));
    }
    TANDEM_RETURN_IF_ERROR(ReadOffsets(from.num_bags(), who, reader, &slice));
    // Bags are expanded to their ids here, and may be a small message for much memory.
    const uint64_t expanded = slice.pooling == v1::NONE ? 0 : expanded_bytes;
    if (slice.ids.size() > (context.max_message_bytes - expanded) / sizeof(float) / from.dim()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          who, ": the gradients of ", slice.ids.size(), " ids need more than the message limit of ",
          context.max_message_bytes, " bytes: push fewer at a time"));
    }
    if (slice.pooling != v1::NONE) expanded_bytes += slice.ids.size() * from.dim() * sizeof(float);
    TANDEM_RETURN_IF_ERROR(ReadGradients(who, reader, &slice, &gradients[s]));
    slice.wire_bytes = before - reader.remaining();
    slice.pulled_version = from.pulled_version();
    slice.place = {from.place().update(), from.place().stale()};
    const float slice_factor = from.learning_rate_factor();
    TANDEM_RETURN_IF_ERROR(CheckRateFactor(slice_factor, who));
    slice.learning_rate_factor = slice_factor == 0.0f ? 1.0f : slice_factor;
  }
  TANDEM_RETURN_IF_ERROR(CheckAllRead(reader, worker, "push"));
  for (size_t s = 0; s < gradients.size(); ++s) {
    TANDEM_RETURN_IF_ERROR(CheckGradients(request.slices[s], gradients[s], worker));
  }
  Keep(reader, &request);
  return request;
}

}  // namespace tandem::ps
