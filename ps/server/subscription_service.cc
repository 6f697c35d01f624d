// SPDX-License-Identifier: Apache-2.0
#include "ps/server/subscription_service.h"

#include <time.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/checksummed_file.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "ps/server/state_capture.h"
#include "ps/wire/value_codec.h"

namespace tandem::ps {
namespace {

// How often the tables of waiting calls are looked at.
constexpr absl::Duration kPoll = absl::Milliseconds(5);
// A call that has read for so long without finding a change answers, so that others get their turn and the
// caller's deadline does not pass.
constexpr absl::Duration kLongestRead = absl::Milliseconds(200);
// The generation, in ChangesPosition.until, of a table that is no more. No table has it.
constexpr uint64_t kDropped = 0;

v1::ValueFormat FormatOf(DType type) {
  return type == DType::kF16 ? v1::VALUES_F16 : type == DType::kBF16 ? v1::VALUES_BF16 : v1::VALUES_F32;
}

// Returns the processor time of this thread.
double ThreadCpuSeconds() {
  timespec time = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

absl::Status Stopping() {
  return absl::UnavailableError("the parameter server is stopping: ask again, with the same position");
}

const v1::ChangesPosition::Table* FindIn(
    const google::protobuf::RepeatedPtrField<v1::ChangesPosition::Table>& tables, absl::string_view name) {
  for (const auto& table : tables) {
    if (table.name() == name) return &table;
  }
  return nullptr;
}

bool Same(const v1::ChangesPosition::Table& a, const v1::ChangesPosition::Table& b) {
  return a.generation() == b.generation() && a.version() == b.version() && a.writes() == b.writes();
}

}  // namespace

SubscriptionService::SubscriptionService(const TableRegistry* tables, RequestHandler* requests,
                                         std::function<absl::Status()> check_serving)
    : tables_(*tables), requests_(*requests), check_serving_(std::move(check_serving)) {}

void SubscriptionService::Stop() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

absl::Status SubscriptionService::CheckRequest(const v1::GetChangesRequest& request) const {
  if (request.max_bytes() > kMostBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_bytes is ", request.max_bytes(), "; it must be at most ", kMostBytes));
  }
  if (absl::Milliseconds(request.wait_ms()) > kMostWait) {
    return absl::InvalidArgumentError(absl::StrCat("wait_ms is ", request.wait_ms(), "; it must be at most ",
                                                   absl::ToInt64Milliseconds(kMostWait)));
  }
  for (const std::string& name : request.tables()) TANDEM_RETURN_IF_ERROR(tables_.Find(name).status());
  return absl::OkStatus();
}

absl::StatusOr<v1::ChangesPosition> SubscriptionService::Parse(const std::string& bytes) const {
  Position position;
  position.set_server(tables_.server());
  position.set_num_servers(tables_.shard_map().num_servers());
  position.set_num_buckets(tables_.shard_map().num_buckets());
  if (bytes.empty()) return position;
  Position theirs;
  const bool parsed = theirs.ParseFromString(bytes);
  const uint32_t crc = theirs.crc32();
  theirs.clear_crc32();
  if (!parsed || crc != Crc32(theirs.SerializeAsString()) ||
      theirs.next_table() > static_cast<uint32_t>(theirs.until_size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("server ", position.server(), ": the position of ", bytes.size(),
                     " bytes is damaged; begin without a position to get everything"));
  }
  if (theirs.server() != position.server() || theirs.num_servers() != position.num_servers() ||
      theirs.num_buckets() != position.num_buckets()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the position is of server ", theirs.server(), " of ", theirs.num_servers(), " with ",
        theirs.num_buckets(), " buckets, this is server ", position.server(), " of ", position.num_servers(),
        " with ", position.num_buckets(), "; begin without a position to get everything"));
  }
  return theirs;
}

std::string SubscriptionService::Serialize(Position position) {
  position.clear_crc32();
  position.set_crc32(Crc32(position.SerializeAsString()));
  return position.SerializeAsString();
}

void SubscriptionService::GetChanges(const rpc::ServerCall& call, v1::GetChangesRequest request,
                                     rpc::Reply<v1::GetChangesResponse> reply) {
  if (absl::Status valid = CheckRequest(request); !valid.ok()) return reply(std::move(valid));
  absl::StatusOr<Position> position = Parse(request.position());
  if (!position.ok()) return reply(position.status());
  const absl::Time now = MonotonicNow();
  // A tenth of the caller's time is left for the answer.
  const absl::Duration wait =
      std::min<absl::Duration>(absl::Milliseconds(request.wait_ms()), (call.deadline() - now) * 0.9);
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) {
      arrived_.push_back({std::move(request), *std::move(position), std::move(reply), now + wait});
      if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
      return;
    }
  }
  reply(Stopping());
}

void SubscriptionService::Run() {
  std::vector<Waiting> waiting;
  const auto has_news = [this]()
                            ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !arrived_.empty(); };
  while (true) {
    bool stops = false;
    {
      absl::MutexLock lock(&mutex_);
      AwaitUntil(&mutex_, absl::Condition(&has_news),
                 waiting.empty() ? absl::InfiniteFuture() : MonotonicNow() + kPoll);
      std::move(arrived_.begin(), arrived_.end(), std::back_inserter(waiting));
      arrived_.clear();
      stops = stopping_;
    }
    if (stops) break;
    const auto gone =
        std::remove_if(waiting.begin(), waiting.end(), [this](Waiting& one) { return Answer(one); });
    waiting.erase(gone, waiting.end());
    waiting_ = waiting.size();
    cpu_s_ = ThreadCpuSeconds();
  }
  for (Waiting& one : waiting) one.reply(Stopping());
}

void SubscriptionService::AddStatistics(v1::ServerStatistics* statistics) const {
  statistics->set_subscription_calls(calls_);
  statistics->set_subscription_rows(rows_);
  statistics->set_subscription_bytes(bytes_);
  statistics->set_subscription_waiting(waiting_);
  statistics->set_subscription_cpu_s(cpu_s_);
}

v1::ChangesPosition::Table SubscriptionService::Now(const ServerTable& table) {
  Position::Table now;
  now.set_name(table.name());
  now.set_dim(table.dim());
  now.set_writes(table.writes());  // before the version: a write that ends in between is given again
  const ServerTable::View view = table.Look();
  now.set_generation(view.generation);
  now.set_version(view.version);
  return now;
}

absl::StatusOr<bool> SubscriptionService::BeginPass(const v1::GetChangesRequest& request,
                                                    Position* position) const {
  std::vector<std::shared_ptr<ServerTable>> wanted;
  if (request.tables().empty()) {
    wanted = tables_.All();
  } else {
    for (const std::string& name : request.tables()) {
      TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<ServerTable> table, tables_.Find(name));
      wanted.push_back(std::move(table));
    }
  }
  // A pass whose table was replaced meanwhile begins anew, and so does one over tables that are not asked
  // for.
  for (const Position::Table& until : position->until()) {
    const auto& asked = request.tables();
    if (!asked.empty() && std::find(asked.begin(), asked.end(), until.name()) == asked.end()) {
      position->clear_until();
      break;
    }
    const absl::StatusOr<std::shared_ptr<ServerTable>> table = tables_.Find(until.name());
    if ((table.ok() ? (*table)->generation() : kDropped) == until.generation()) continue;
    position->clear_until();
    break;
  }
  if (position->until_size() > 0) return true;
  position->set_next_table(0);
  position->set_next_bucket(0);
  position->set_next_id(0);
  position->set_whole(false);
  bool any = false;
  for (const auto& table : wanted) {
    table->storage()->BeginRemovalLog();
    const Position::Table now = Now(*table);
    const Position::Table* const before = FindIn(position->tables(), table->name());
    any = any || before == nullptr || !Same(*before, now);
    *position->add_until() = now;
  }
  if (request.tables().empty()) {
    for (const Position::Table& before : position->tables()) {
      if (tables_.Find(before.name()).ok()) continue;
      any = true;
      Position::Table* const until = position->add_until();
      *until = before;
      until->set_generation(kDropped);
    }
  }
  if (!any) position->clear_until();
  return any;
}

absl::StatusOr<v1::GetChangesResponse> SubscriptionService::Read(const v1::GetChangesRequest& request,
                                                                 Position position) const {
  const uint32_t max_bytes = request.max_bytes() == 0 ? kDefaultBytes : request.max_bytes();
  const absl::Time latest = MonotonicNow() + kLongestRead;
  const ShardMap& map = tables_.shard_map();
  v1::GetChangesResponse response;
  response.set_num_buckets(map.num_buckets());
  uint64_t bytes = 0;
  const auto next_table = [&position] {
    position.set_next_table(position.next_table() + 1);
    position.set_next_bucket(0);
  };
  bool full = false;
  while (!full && position.next_table() < static_cast<uint32_t>(position.until_size())) {
    const Position::Table& until = position.until(static_cast<int>(position.next_table()));
    const Position::Table* const before = FindIn(position.tables(), until.name());
    const bool comparable = before != nullptr && before->generation() == until.generation();
    if (comparable && Same(*before, until)) {
      next_table();
      continue;
    }
    if (until.generation() == kDropped) {
      for (const uint32_t bucket : OwnBuckets(tables_)) {
        v1::ChangedRows* const rows = response.add_changes();
        rows->set_table(until.name());
        rows->set_bucket(bucket);
        rows->set_whole(true);
        rows->set_dim(until.dim());
      }
      next_table();
      continue;
    }
    const absl::StatusOr<std::shared_ptr<ServerTable>> found = tables_.Find(until.name());
    if (!found.ok()) return absl::AbortedError(found.status().message());  // it was dropped meanwhile
    const std::shared_ptr<ServerTable>& table = *found;
    const std::shared_ptr<TableStorage> storage = table->storage();
    const uint32_t dim = table->dim();
    const v1::ValueFormat format = FormatOf(storage->row_type());
    const size_t row_bytes = RowBytes(format, dim);
    while (!full && position.next_bucket() < map.num_buckets()) {
      const uint32_t bucket = position.next_bucket();
      if (map.OwnerOfBucket(bucket) != tables_.server()) {
        position.set_next_bucket(bucket + 1);
        continue;
      }
      const size_t limit = std::max<size_t>(
          1, (max_bytes - std::min<uint64_t>(bytes, max_bytes)) / (row_bytes + sizeof(uint64_t)));
      v1::ChangedRows rows;
      std::string& values = *rows.mutable_rows();
      const bool goes_on = position.next_id() != 0;
      TANDEM_ASSIGN_OR_RETURN(const NewerRows newer,
                              storage->VisitNewer(bucket, comparable ? before->version() : 0,
                                                  !comparable || position.whole(), position.next_id(), limit,
                                                  [&](uint64_t id, const float* row, const RowHistory&) {
                                                    rows.add_ids(id);
                                                    values.resize(values.size() + row_bytes);
                                                    EncodeRows(format, row, nullptr, 1, dim,
                                                               &values[values.size() - row_bytes]);
                                                  }));
      const bool begins_whole = newer.whole && !goes_on;
      bytes += rows.ids_size() * (row_bytes + sizeof(uint64_t)) + newer.removed.size() * sizeof(uint64_t);
      if (newer.more) {
        position.set_next_id(rows.ids(rows.ids_size() - 1) + 1);
        position.set_whole(newer.whole);
      } else {
        position.set_next_bucket(bucket + 1);
        position.set_next_id(0);
        position.set_whole(false);
      }
      if (rows.ids_size() > 0 || !newer.removed.empty() || begins_whole) {
        rows.set_table(until.name());
        rows.set_bucket(bucket);
        rows.set_whole(begins_whole);
        rows.mutable_removed()->Add(newer.removed.begin(), newer.removed.end());
        rows.set_values(format);
        rows.set_dim(dim);
        if (begins_whole && (response.tables().empty() ||
                             response.tables(response.tables_size() - 1).name() != until.name())) {
          *response.add_tables() = table->config();
        }
        *response.add_changes() = std::move(rows);
      }
      full = bytes >= max_bytes || MonotonicNow() >= latest;
    }
    if (position.next_bucket() >= map.num_buckets()) next_table();
    // Rows of a table that LoadCheckpoint has replaced meanwhile belong to no position.
    if (table->generation() != until.generation()) {
      return absl::AbortedError(absl::StrCat("table '", until.name(), "' was replaced while it was read"));
    }
  }
  if (position.next_table() == static_cast<uint32_t>(position.until_size())) {
    response.set_complete(true);
    // Tables that the caller does not want this time keep their position.
    for (const Position::Table& until : position.until()) {
      Position::Table* before = nullptr;
      for (Position::Table& one : *position.mutable_tables()) {
        if (one.name() == until.name()) before = &one;
      }
      *(before == nullptr ? position.add_tables() : before) = until;
    }
    auto* const tables = position.mutable_tables();
    tables->erase(std::remove_if(tables->begin(), tables->end(),
                                 [](const Position::Table& one) { return one.generation() == kDropped; }),
                  tables->end());
    position.clear_until();
    position.set_next_table(0);
  }
  response.set_position(Serialize(std::move(position)));
  return response;
}

bool SubscriptionService::Answer(Waiting& waiting) {
  const auto answer = [this, &waiting](absl::StatusOr<v1::GetChangesResponse> response) {
    ++calls_;
    waiting.reply(std::move(response));
    return true;
  };
  if (absl::Status serving = check_serving_(); !serving.ok()) return answer(std::move(serving));
  const absl::StatusOr<bool> pass = BeginPass(waiting.request, &waiting.position);
  if (!pass.ok()) return answer(pass.status());
  if (!*pass) {
    if (MonotonicNow() < waiting.deadline) return false;
    v1::GetChangesResponse nothing;
    nothing.set_complete(true);
    nothing.set_position(Serialize(waiting.position));
    return answer(std::move(nothing));
  }
  absl::StatusOr<v1::GetChangesResponse> response = Read(waiting.request, waiting.position);
  if (absl::IsAborted(response.status())) return false;  // the table was replaced: begins anew at once
  if (!response.ok()) return answer(response.status());
  ++calls_;
  for (const v1::ChangedRows& changes : response->changes()) {
    rows_ += static_cast<uint64_t>(changes.ids_size());
  }
  bytes_ += response->ByteSizeLong();
  // The rows may hold updates that only this copy has; they are given once they are safe.
  requests_.WhenDurable(
      [reply = waiting.reply, response = *std::move(response)](const absl::Status& durable) {
        durable.ok() ? reply(response) : reply(durable);
      });
  return true;
}

}  // namespace tandem::ps
