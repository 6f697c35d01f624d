#include "ps/client/pull_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/codec/bulk_codec.h"

namespace tandem::ps {
namespace {

constexpr absl::string_view kPull = "/tandem.v1.ParameterServer/Pull";

size_t NumBags(const PullPart& part) { return part.offsets.empty() ? 0 : part.offsets.size() - 1; }

}  // namespace

PullCall::PullCall(const ShardMap& map, std::vector<ResolvedPart> parts, Client::PullDone done)
    : parts_(std::move(parts)), done_(std::move(done)) {
  const uint32_t servers = map.num_servers();
  versions_.assign(parts_.size(), std::vector<uint64_t>(servers, 0));
  pooled_.resize(parts_.size());
  split_.resize(parts_.size());
  for (size_t p = 0; p < parts_.size(); ++p) {
    if (parts_[p].part.pooling != v1::NONE) pooled_[p].resize(servers);
    if (servers > 1) SplitByServer(map, parts_[p].part.ids, parts_[p].part.offsets, &split_[p]);
  }
}

void PullCall::Start(absl::Span<const std::unique_ptr<rpc::Channel>> channels, uint32_t worker, uint64_t step,
                     bool read_only, absl::Duration timeout) {
  outstanding_.store(static_cast<uint32_t>(channels.size()), std::memory_order_relaxed);
  for (uint32_t server = 0; server < channels.size(); ++server) {
    v1::PullRequest header;
    header.set_worker(worker);
    header.set_step(step);
    header.set_read_only(read_only);
    Bytes payload;
    for (size_t p = 0; p < parts_.size(); ++p) {
      const PullPart& part = parts_[p].part;
      // With one server the caller's arrays go to the socket as they are.
      absl::Span<const uint64_t> ids =
          split_[p].empty() ? part.ids : absl::MakeConstSpan(split_[p][server].ids);
      absl::Span<const uint32_t> offsets =
          split_[p].empty() ? part.offsets : absl::MakeConstSpan(split_[p][server].offsets);
      v1::PullSlice* slice = header.add_slices();
      slice->set_table(part.table);
      slice->set_num_ids(ids.size());
      payload.Append(Slice::Unowned(ids.data(), ids.size() * sizeof(uint64_t)));
      if (part.pooling != v1::NONE) {
        // A mean over a bag that lies on several servers is not the mean of their means: ask for sums, divide
        // here.
        slice->set_pooling(v1::SUM);
        slice->set_num_bags(NumBags(part));
        payload.Append(Slice::Unowned(offsets.data(), offsets.size() * sizeof(uint32_t)));
      }
    }
    channels[server]->CallAsync(
        kPull, rpc::EncodeBulk(header, std::move(payload)), {.timeout = timeout, .idempotent = true},
        [self = shared_from_this(), server, target = channels[server]->target()](
            absl::StatusOr<Bytes> answer) { self->OnAnswer(server, target, std::move(answer)); });
  }
}

void PullCall::OnAnswer(uint32_t server, const std::string& target, absl::StatusOr<Bytes> answer) {
  absl::Status status = answer.ok() ? Accept(server, *answer) : answer.status();
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    if (first_error_.ok())
      first_error_ = Annotate(status, absl::StrCat("pull from server ", server, " (", target, ")"));
  }
  if (outstanding_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  {
    absl::MutexLock lock(&mutex_);
    status = first_error_;
  }
  if (!status.ok()) {
    std::move(done_)(std::move(status));
    return;
  }
  AddPooledRows();
  std::move(done_)(std::move(versions_));
}

absl::Status PullCall::Accept(uint32_t server, const Bytes& answer) {
  v1::PullResponse header;
  Bytes payload;
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(answer, &header, &payload));
  if (header.slices_size() != static_cast<int>(parts_.size())) {
    return absl::DataLossError(
        absl::StrCat("the answer has ", header.slices_size(), " slices, expected ", parts_.size()));
  }
  size_t expected_bytes = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const PullPart& part = parts_[p].part;
    const v1::PullSliceResult& slice = header.slices(p);
    const size_t rows = part.pooling != v1::NONE ? NumBags(part)
                        : split_[p].empty()      ? part.ids.size()
                                                 : split_[p][server].ids.size();
    if (slice.dim() != parts_[p].dim || slice.num_rows() != rows) {
      return absl::DataLossError(absl::StrCat("table '", part.table, "': the answer has ", slice.num_rows(),
                                              " rows of ", slice.dim(), " floats, expected ", rows, " of ",
                                              parts_[p].dim));
    }
    versions_[p][server] = slice.version();
    expected_bytes += rows * slice.dim() * sizeof(float);
  }
  if (payload.size() != expected_bytes) {
    return absl::DataLossError(
        absl::StrCat("the answer's payload has ", payload.size(), " bytes, expected ", expected_bytes));
  }
  BytesReader reader(payload);
  size_t offset = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const PullPart& part = parts_[p].part;
    const size_t row_bytes = parts_[p].dim * sizeof(float);
    if (part.pooling != v1::NONE) {
      const size_t bytes = NumBags(part) * row_bytes;
      pooled_[p][server] = payload.Sub(offset, bytes);
      reader.Skip(bytes);
      offset += bytes;
    } else if (split_[p].empty()) {
      reader.Copy(part.rows, part.ids.size() * row_bytes);
      offset += part.ids.size() * row_bytes;
    } else {
      const std::vector<uint32_t>& positions = split_[p][server].positions;
      for (const uint32_t position : positions) {
        reader.Copy(part.rows + static_cast<size_t>(position) * parts_[p].dim, row_bytes);
      }
      offset += positions.size() * row_bytes;
    }
  }
  return absl::OkStatus();
}

void PullCall::AddPooledRows() {
  std::string scratch;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const PullPart& part = parts_[p].part;
    if (part.pooling == v1::NONE) continue;
    const size_t dim = parts_[p].dim;
    const size_t bags = NumBags(part);
    std::fill_n(part.rows, bags * dim, 0.0f);
    for (const Bytes& partial : pooled_[p]) {
      BytesReader reader(partial);
      const char* data = reader.Contiguous(bags * dim * sizeof(float), alignof(float), &scratch);
      const float* sums = reinterpret_cast<const float*>(data);
      for (size_t i = 0; i < bags * dim; ++i) part.rows[i] += sums[i];
    }
    if (part.pooling != v1::MEAN) continue;
    for (size_t bag = 0; bag < bags; ++bag) {
      const uint32_t count = part.offsets[bag + 1] - part.offsets[bag];
      if (count < 2) continue;
      const float scale = 1.0f / static_cast<float>(count);
      for (size_t d = 0; d < dim; ++d) part.rows[bag * dim + d] *= scale;
    }
  }
}

}  // namespace tandem::ps
