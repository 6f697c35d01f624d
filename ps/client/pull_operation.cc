// SPDX-License-Identifier: Apache-2.0
#include "ps/client/pull_operation.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ps/client/route/follower_reading_channel.h"
#include "ps/trace_kinds.h"
#include "ps/wire/value_codec.h"
#include "ps/wire/version_codec.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::ps {
namespace {

constexpr absl::string_view kPull = "/tandem.v1.ParameterServer/Pull";

// Smaller responses arrive in one chunk anyway.
constexpr size_t kMinChunkedBytes = size_t{128} << 10;

}  // namespace

PullOperation::PullOperation(const ShardMap& map, std::vector<ResolvedPullPart> parts, Deduper* deduper,
                             PullDone done)
    : parts_(std::move(parts)), done_(std::move(done)) {
  const uint32_t servers = map.num_servers();
  versions_.assign(parts_.size(), std::vector<uint64_t>(servers, 0));
  pooled_.resize(parts_.size());
  split_.resize(parts_.size());
  repeats_.resize(parts_.size());
  for (size_t p = 0; p < parts_.size(); ++p) {
    const PullPart& part = parts_[p].part;
    if (part.pooling != v1::NONE) pooled_[p].resize(servers);
    if (part.repeats && part.pooling == v1::NONE && deduper->SampleRepeats(part.ids)) {
      Dedupe(p, map, deduper);
    } else if (servers > 1) {
      SplitByServer(map, part.ids, part.offsets, &split_[p]);
    }
    if (parts_[p].read != nullptr && parts_[p].read->some_hit()) PlaceMissingRows(p);
  }
}

void PullOperation::Dedupe(size_t p, const ShardMap& map, Deduper* deduper) {
  const PullPart& part = parts_[p].part;
  std::vector<uint64_t> distinct;
  std::vector<uint32_t> index;
  deduper->Run(part.ids, &distinct, &index);
  std::vector<uint32_t> first;  // the first position of each distinct id
  first.reserve(distinct.size());
  for (uint32_t i = 0; i < index.size(); ++i) {
    if (index[i] == first.size()) {
      first.push_back(i);
    } else {
      repeats_[p].push_back({first[index[i]], i});
    }
  }
  if (map.num_servers() > 1) {
    SplitByServer(map, distinct, {}, &split_[p]);
    for (ServerIds& server : split_[p]) {
      for (uint32_t& position : server.positions) position = first[position];
    }
  } else if (!repeats_[p].empty()) {
    split_[p].push_back({.ids = std::move(distinct), .positions = std::move(first)});
  }
}

void PullOperation::PlaceMissingRows(size_t p) {
  const absl::Span<const uint32_t> places = parts_[p].read->positions();
  if (split_[p].empty()) {
    const absl::Span<const uint64_t> ids = parts_[p].part.ids;
    split_[p].push_back({.ids = {ids.begin(), ids.end()}, .positions = {places.begin(), places.end()}});
  } else {
    for (ServerIds& server : split_[p]) {
      for (uint32_t& position : server.positions) position = places[position];
    }
  }
  for (Repeat& repeat : repeats_[p]) repeat = {places[repeat.from], places[repeat.to]};
}

Bytes PullOperation::EncodeRequest(uint32_t server, const RequestRoute& route) const {
  v1::PullRequest header;
  header.set_worker(options_.worker);
  header.set_step(options_.step);
  header.set_read_only(options_.read_only);
  header.set_max_lag_us(static_cast<uint64_t>(absl::ToInt64Microseconds(options_.max_lag)));
  const auto offsets_of = [&](size_t p) {
    return split_[p].empty() ? parts_[p].part.offsets : absl::MakeConstSpan(split_[p][server].offsets);
  };
  std::vector<IdArray> ids;
  ids.reserve(parts_.size());
  std::vector<VersionCoding> codings(parts_.size());
  std::vector<std::vector<uint32_t>> copies(parts_.size());
  const auto copy_bytes = [&](size_t p) { return PackedVersionBytes(copies[p].size(), codings[p].bits); };
  size_t total = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const PullPart& part = parts_[p].part;
    ids.emplace_back(Ids(p, server), parts_[p].wire.pack_ids, route);
    v1::PullSlice* slice = header.add_slices();
    slice->set_table(part.table);
    slice->set_values(parts_[p].wire.pull_values);
    ids.back().Describe(slice);
    total += ids.back().bytes() + offsets_of(p).size() * sizeof(uint32_t);
    if (parts_[p].cached != nullptr) {
      ConditionalPull& conditional = *parts_[p].cached->conditional();
      copies[p] = CopyVersions(p, server);
      codings[p] = ChooseVersionCoding(copies[p], RowBytes(parts_[p].wire.pull_values, parts_[p].dim));
      slice->set_conditional(true);
      slice->set_max_age(conditional.max_age);
      slice->set_version_bits(codings[p].bits);
      slice->set_version_base(codings[p].base);
      slice->set_generation(conditional.generations[server]);
      slice->set_unasked_rows(conditional.locally_served[server]);
      total += copy_bytes(p);
      conditional.request_bytes += ids.back().bytes() + copy_bytes(p);
    }
    if (part.pooling == v1::NONE) continue;
    // The mean over a bag on several servers is not the mean of their means: request sums and divide here.
    slice->set_pooling(v1::SUM);
    slice->set_num_bags(NumBags(part));
  }
  PayloadWriter writer(route, total);
  for (size_t p = 0; p < parts_.size(); ++p) {
    writer.Put(ids[p]);
    writer.Put(offsets_of(p).data(), offsets_of(p).size() * sizeof(uint32_t));
    if (!copies[p].empty()) PackVersions(copies[p], codings[p], writer.Reserve(copy_bytes(p)));
  }
  return rpc::EncodeBulk(header, std::move(writer).Finish());
}

std::vector<uint32_t> PullOperation::CopyVersions(size_t p, uint32_t server) const {
  const absl::Span<const uint32_t> all = parts_[p].cached->conditional()->versions;
  if (split_[p].empty()) return {all.begin(), all.end()};
  std::vector<uint32_t> versions;
  versions.reserve(split_[p][server].positions.size());
  for (const uint32_t position : split_[p][server].positions) versions.push_back(all[position]);
  return versions;
}

void PullOperation::Start(absl::Span<const std::unique_ptr<rpc::Channel>> channels, BufferPool* pool,
                          const Options& options) {
  options_ = options;
  outstanding_.store(static_cast<uint32_t>(channels.size()), std::memory_order_relaxed);
  for (uint32_t server = 0; server < channels.size(); ++server) {
    rpc::Channel& channel = *channels[server];
    const auto memory = [&](size_t bytes) { return RequestMemoryOf(channel, pool, bytes); };
    const uint64_t traced = trace::Begin();
    Bytes request = EncodeRequest(server, {.memory = memory, .reads_in_place = ReadsInPlace(channel)});
    trace::End(kTraceEncodePull, traced, server);
    std::shared_ptr<ChunkDecoder> decoder = DecoderOf(server);
    const rpc::CallOptions call{.timeout = options.timeout, .idempotent = true, .sink = decoder};
    auto done = [self = shared_from_this(), server, target = channel.target(),
                 decoder = std::move(decoder)](absl::StatusOr<Bytes> response) {
      self->OnResponse(server, target, decoder.get(), std::move(response));
    };
    auto* const copies =
        options.max_lag > absl::ZeroDuration() ? dynamic_cast<CopiesChannel*>(&channel) : nullptr;
    if (copies != nullptr) {
      copies->CallAnyCopy(kPull, std::move(request), call, std::move(done));
    } else {
      channel.CallAsync(kPull, std::move(request), call, std::move(done));
    }
  }
}

std::shared_ptr<ChunkDecoder> PullOperation::DecoderOf(uint32_t server) {
  std::vector<RowDestination> slices;
  size_t bytes = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const PullPart& part = parts_[p].part;
    if (part.pooling != v1::NONE || parts_[p].cached != nullptr) return nullptr;
    slices.push_back({.values = parts_[p].wire.pull_values,
                      .positions = split_[p].empty() ? nullptr : split_[p][server].positions.data(),
                      .rows = Ids(p, server).size(),
                      .dim = parts_[p].dim,
                      .floats = part.rows});
    bytes += slices.back().rows * RowBytes(slices.back().values, slices.back().dim);
  }
  if (bytes < kMinChunkedBytes) return nullptr;
  return std::make_shared<ChunkDecoder>(std::move(slices),
                                        [this, server](const v1::PullResponse& header, size_t payload_bytes) {
                                          return CheckShape(server, header, payload_bytes);
                                        });
}

void PullOperation::OnResponse(uint32_t server, const std::string& target, ChunkDecoder* decoder,
                               absl::StatusOr<Bytes> response) {
  const uint64_t traced = trace::Begin();
  absl::Status status = response.status();
  if (status.ok() && decoder != nullptr) {
    absl::StatusOr<std::optional<Bytes>> left = decoder->Finish(*std::move(response));
    status = left.status();
    if (status.ok() && left->has_value()) status = Accept(server, **left);
  } else if (status.ok()) {
    status = Accept(server, *response);
  }
  trace::End(kTraceDecodePull, traced, server);
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
  for (size_t p = 0; p < parts_.size(); ++p) {
    if (parts_[p].part.pooling != v1::NONE) AddPooledRows(p);
    CopyRepeats(p);
    if (parts_[p].cached != nullptr) parts_[p].cached->Finish(&versions_[p]);
    if (parts_[p].read == nullptr) continue;
    parts_[p].read->Finish();
    if (parts_[p].read->some_hit()) versions_[p].assign(versions_[p].size(), 0);
  }
  std::move(done_)(std::move(versions_));
}

absl::Status PullOperation::CheckShape(uint32_t server, const v1::PullResponse& header,
                                       size_t payload_bytes) {
  if (header.slices_size() != static_cast<int>(parts_.size())) {
    return absl::DataLossError(
        absl::StrCat("the answer has ", header.slices_size(), " slices, expected ", parts_.size()));
  }
  size_t expected_bytes = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    const PullPart& part = parts_[p].part;
    const v1::PullSliceResult& slice = header.slices(p);
    const bool conditional = parts_[p].cached != nullptr;
    const size_t all = part.pooling != v1::NONE ? NumBags(part) : Ids(p, server).size();
    const size_t rows = conditional ? std::min<uint64_t>(slice.num_rows(), all) : all;
    if (slice.dim() != parts_[p].dim || slice.num_rows() != rows) {
      return absl::DataLossError(absl::StrCat("table '", part.table, "': the answer has ", slice.num_rows(),
                                              " rows of ", slice.dim(), " numbers, expected ", rows, " of ",
                                              parts_[p].dim));
    }
    if (slice.values() != parts_[p].wire.pull_values) {
      return absl::DataLossError(absl::StrCat("table '", part.table, "': the answer's rows are ",
                                              Name(slice.values()), ", expected ",
                                              Name(parts_[p].wire.pull_values)));
    }
    // Cached copies are as old as their versions. Rows that the server sent contain all updates that it has
    // counted.
    // Copies of a server have generations of their own, so those of followers tell nothing of the server.
    if (parts_[p].read != nullptr && !header.from_follower()) {
      parts_[p].read->SetGeneration(server, slice.generation());
    }
    versions_[p][server] = conditional ? slice.version() : std::max(slice.version(), slice.applied());
    expected_bytes += rows * RowBytes(slice.values(), slice.dim()) + (conditional ? BitmapBytes(all) : 0);
  }
  if (payload_bytes != expected_bytes) {
    return absl::DataLossError(
        absl::StrCat("the answer's payload has ", payload_bytes, " bytes, expected ", expected_bytes));
  }
  if (options_.max_lag > absl::ZeroDuration()) {
    options_.follower_reads->AddAnswer(header.from_follower(), header.lag_us());
  }
  return absl::OkStatus();
}

absl::Status PullOperation::Accept(uint32_t server, const Bytes& response) {
  v1::PullResponse header;
  Bytes payload;
  TANDEM_RETURN_IF_ERROR(rpc::DecodeBulk(response, &header, &payload));
  TANDEM_RETURN_IF_ERROR(CheckShape(server, header, payload.size()));
  BytesReader reader(payload);
  for (size_t p = 0; p < parts_.size(); ++p) {
    const PullPart& part = parts_[p].part;
    const v1::ValueFormat values = parts_[p].wire.pull_values;
    if (part.pooling != v1::NONE) {
      const size_t bytes = NumBags(part) * RowBytes(values, parts_[p].dim);
      pooled_[p][server] = payload.Sub(payload.size() - reader.remaining(), bytes);
      reader.Skip(bytes);
    } else if (parts_[p].cached != nullptr) {
      TANDEM_RETURN_IF_ERROR(AcceptNewer(p, server, header.slices(p), &reader));
    } else {
      DecodeRows(values, &reader, split_[p].empty() ? nullptr : split_[p][server].positions.data(),
                 Ids(p, server).size(), parts_[p].dim, part.rows);
    }
  }
  return absl::OkStatus();
}

absl::Status PullOperation::AcceptNewer(size_t p, uint32_t server, const v1::PullSliceResult& slice,
                                        BytesReader* reader) {
  ConditionalPull& conditional = *parts_[p].cached->conditional();
  const size_t count = Ids(p, server).size();
  const size_t before = reader->remaining();
  std::vector<uint8_t> bitmap(BitmapBytes(count));
  reader->Copy(bitmap.data(), bitmap.size());
  std::vector<uint32_t> to;
  to.reserve(slice.num_rows());
  std::vector<uint32_t> sent;
  sent.reserve(slice.num_rows());
  for (size_t i = 0; i < count; ++i) {
    if ((bitmap[i / 8] >> (i % 8) & 1) == 0) continue;
    sent.push_back(split_[p].empty() ? static_cast<uint32_t>(i) : split_[p][server].positions[i]);
    to.push_back(conditional.positions[sent.back()]);
  }
  if (to.size() != slice.num_rows()) {
    return absl::DataLossError(absl::StrCat("table '", parts_[p].part.table, "': the answer says that ",
                                            to.size(), " rows were sent, and has ", slice.num_rows()));
  }
  DecodeRows(parts_[p].wire.pull_values, reader, to.data(), to.size(), parts_[p].dim, parts_[p].part.rows);
  for (const uint32_t i : sent) conditional.sent[i] = 1;
  conditional.response_generations[server] = slice.generation();
  conditional.response_applied[server] = std::max(slice.version(), slice.applied());
  conditional.response_bytes += before - reader->remaining();
  return absl::OkStatus();
}

void PullOperation::AddPooledRows(size_t p) {
  const PullPart& part = parts_[p].part;
  const size_t dim = parts_[p].dim;
  const size_t bags = NumBags(part);
  std::vector<float> sums;
  for (size_t server = 0; server < pooled_[p].size(); ++server) {
    BytesReader reader(pooled_[p][server]);
    if (server > 0) sums.resize(bags * dim);
    DecodeRows(parts_[p].wire.pull_values, &reader, nullptr, bags, dim,
               server == 0 ? part.rows : sums.data());
    for (size_t i = 0; i < sums.size(); ++i) part.rows[i] += sums[i];
  }
  if (part.pooling != v1::MEAN) return;
  for (size_t bag = 0; bag < bags; ++bag) {
    const uint32_t count = part.offsets[bag + 1] - part.offsets[bag];
    if (count < 2) continue;
    const float scale = 1.0f / static_cast<float>(count);
    for (size_t d = 0; d < dim; ++d) part.rows[bag * dim + d] *= scale;
  }
}

void PullOperation::CopyRepeats(size_t p) {
  const size_t dim = parts_[p].dim;
  float* const rows = parts_[p].part.rows;
  for (const Repeat& repeat : repeats_[p]) std::copy_n(rows + repeat.from * dim, dim, rows + repeat.to * dim);
}

}  // namespace tandem::ps
