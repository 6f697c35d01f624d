#include "ps/server/wire.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "rpc/codec/bulk_codec.h"

namespace tandem::ps {
namespace {

// Cuts a payload into arrays. An array is used where it lies when it is in one piece, aligned, and its memory
// is owned (unowned memory is only the caller's until the call is answered, and a push may be kept longer).
class ArrayReader {
 public:
  ArrayReader(const Bytes& payload, size_t arrays, BufferPool& buffers)
      : slices_(payload.slices()),
        remaining_(payload.size()),
        capacity_(payload.size() + arrays * alignof(uint64_t)),
        buffers_(buffers) {}

  // False when fewer than `count` elements remain; nothing has been read then.
  template <typename T>
  bool Read(uint64_t count, absl::Span<const T>* out) {
    if (count > remaining_ / sizeof(T)) return false;
    const size_t bytes = count * sizeof(T);
    remaining_ -= bytes;
    if (bytes == 0) {
      *out = {};
      return true;
    }
    SkipFinished();
    const Slice& slice = slices_[index_];
    const char* here = slice.data() + offset_;
    if (slice.owner() != nullptr && slice.size() - offset_ >= bytes &&
        reinterpret_cast<uintptr_t>(here) % alignof(T) == 0) {
      offset_ += bytes;
      *out = absl::MakeConstSpan(reinterpret_cast<const T*>(here), count);
      return true;
    }
    char* to = Allocate(bytes);
    *out = absl::MakeConstSpan(reinterpret_cast<const T*>(to), count);
    for (size_t left = bytes; left > 0;) {
      SkipFinished();
      const size_t take = std::min(left, slices_[index_].size() - offset_);
      std::memcpy(to, slices_[index_].data() + offset_, take);
      to += take;
      offset_ += take;
      left -= take;
    }
    return true;
  }

  size_t remaining() const { return remaining_; }
  size_t copied() const { return used_; }
  std::shared_ptr<char> TakeCopies() { return std::move(copies_); }

 private:
  void SkipFinished() {
    while (offset_ == slices_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
  }
  char* Allocate(size_t bytes) {
    if (copies_ == nullptr) copies_ = buffers_.Get(capacity_);
    char* at = copies_.get() + used_;
    used_ += (bytes + alignof(uint64_t) - 1) / alignof(uint64_t) * alignof(uint64_t);
    return at;
  }

  const absl::Span<const Slice> slices_;
  size_t index_ = 0;
  size_t offset_ = 0;
  size_t remaining_;
  const size_t capacity_;
  size_t used_ = 0;
  BufferPool& buffers_;
  std::shared_ptr<char> copies_;
};

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

// NaN and Inf are the floats whose exponent bits are all ones: looked for as integers, which compilers
// vectorise.
bool AllFinite(absl::Span<const float> values) {
  uint32_t largest = 0;
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    largest = std::max(largest, bits & 0x7fffffffu);
  }
  return largest < 0x7f800000u;
}

absl::Status CheckGradients(const ParsedSlice& slice, const std::string& who) {
  if (AllFinite(slice.gradients)) return absl::OkStatus();
  slice.table->counters().AddRefusedPush();
  const size_t at = std::find_if(slice.gradients.begin(), slice.gradients.end(),
                                 [](float g) { return !std::isfinite(g); }) -
                    slice.gradients.begin();
  const uint64_t row = at / slice.table->dim();
  const std::string which =
      slice.pooling == v1::NONE ? absl::StrCat("id ", slice.ids[row]) : absl::StrCat("bag ", row);
  return absl::InvalidArgumentError(absl::StrCat(who, ": gradient of ", which, " is ",
                                                 std::isnan(slice.gradients[at]) ? "NaN" : "Inf",
                                                 "; push refused"));
}

// The ids of the slice and, with pooling, its offsets. `header` is a PullSlice or a PushSlice.
template <typename SliceHeader>
absl::Status StartSlice(const SliceHeader& header, uint32_t worker, bool needs_rank,
                        const WireContext& context, ArrayReader& reader, ParsedSlice* slice) {
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
  if (!reader.Read(header.num_ids(), &slice->ids)) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": payload too short: num_ids is ", header.num_ids(),
                                                   ", ", reader.remaining(), " bytes are left"));
  }
  return CheckIds(slice->ids, *slice->table, context, who);
}

absl::Status ReadOffsets(uint64_t num_bags, const std::string& who, ArrayReader& reader, ParsedSlice* slice) {
  if (slice->pooling == v1::NONE) {
    if (num_bags == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": num_bags is ", num_bags, " without pooling, must be 0"));
  }
  // Compared first: num_bags + 1 must not overflow.
  if (num_bags >= reader.remaining() / sizeof(uint32_t) || !reader.Read(num_bags + 1, &slice->offsets)) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": payload too short for the offsets of ", num_bags,
                                                   " bags: ", reader.remaining(), " bytes are left"));
  }
  return CheckOffsets(slice->offsets, slice->ids.size(), who);
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
  request->memory_bytes = request->payload.size() + reader.copied();
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
  ArrayReader reader(request.payload, 2 * header.slices_size(), context.buffers);
  uint64_t response_bytes = 0;
  request.slices.resize(header.slices_size());
  for (int s = 0; s < header.slices_size(); ++s) {
    const v1::PullSlice& from = header.slices(s);
    ParsedSlice& slice = request.slices[s];
    TANDEM_RETURN_IF_ERROR(StartSlice(from, worker, !request.read_only, context, reader, &slice));
    TANDEM_RETURN_IF_ERROR(ReadOffsets(from.num_bags(), Who(worker, from.table()), reader, &slice));
    // No overflow: counts are at most the payload's bytes, dim is 32 bits, and the sum is checked slice by
    // slice.
    const size_t row_bytes = slice.table->dim() * sizeof(float);
    const unsigned __int128 bytes = static_cast<unsigned __int128>(slice.rows()) * row_bytes + response_bytes;
    const unsigned __int128 unpooled = static_cast<unsigned __int128>(slice.ids.size()) * row_bytes;
    if (std::max(bytes, unpooled) > context.max_message_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(Who(worker, from.table()), ": the rows asked for need more than the message limit of ",
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
  TANDEM_RETURN_IF_ERROR(CheckStep(request.step, worker));
  const float factor = header.learning_rate_factor();
  if (!std::isfinite(factor) || factor < 0.0f) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, ": learning_rate_factor ", factor,
                                                   " must be finite and not negative"));
  }
  request.learning_rate_factor = factor == 0.0f ? 1.0f : factor;
  if (header.slices_size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("worker ", worker, ": push of step ", request.step,
                                                   " names no table (an empty slice of each will do)"));
  }
  ArrayReader reader(request.payload, 3 * header.slices_size(), context.buffers);
  request.slices.resize(header.slices_size());
  for (int s = 0; s < header.slices_size(); ++s) {
    const v1::PushSlice& from = header.slices(s);
    ParsedSlice& slice = request.slices[s];
    TANDEM_RETURN_IF_ERROR(StartSlice(from, worker, true, context, reader, &slice));
    const std::string who = Who(worker, from.table());
    if (from.dim() != slice.table->dim()) {
      return absl::InvalidArgumentError(
          absl::StrCat(who, ": gradients of dim ", from.dim(), ", but its dim is ", slice.table->dim()));
    }
    TANDEM_RETURN_IF_ERROR(ReadOffsets(from.num_bags(), who, reader, &slice));
    // Bags are expanded to their ids here, and may be a small message for much memory.
    if (slice.ids.size() > context.max_message_bytes / sizeof(float) / from.dim()) {
      return absl::ResourceExhaustedError(absl::StrCat(
          who, ": the gradients of ", slice.ids.size(), " ids need more than the message limit of ",
          context.max_message_bytes, " bytes: push fewer at a time"));
    }
    const uint64_t rows = slice.rows();
    if (rows > reader.remaining() / sizeof(float) / from.dim() ||
        !reader.Read(rows * from.dim(), &slice.gradients)) {
      return absl::InvalidArgumentError(absl::StrCat(who, ": payload too short for ", rows,
                                                     " gradients of dim ", from.dim(), ": ",
                                                     reader.remaining(), " bytes are left"));
    }
    slice.pulled_version = from.pulled_version();
    slice.place = {from.place().update(), from.place().stale()};
    const float slice_factor = from.learning_rate_factor();
    if (!std::isfinite(slice_factor) || slice_factor < 0.0f) {
      return absl::InvalidArgumentError(
          absl::StrCat(who, ": learning_rate_factor ", slice_factor, " must be finite and not negative"));
    }
    slice.learning_rate_factor = slice_factor == 0.0f ? 1.0f : slice_factor;
  }
  TANDEM_RETURN_IF_ERROR(CheckAllRead(reader, worker, "push"));
  for (const ParsedSlice& slice : request.slices) {
    TANDEM_RETURN_IF_ERROR(CheckGradients(slice, Who(worker, slice.table->name())));
  }
  Keep(reader, &request);
  return request;
}

}  // namespace tandem::ps
