// SPDX-License-Identifier: Apache-2.0
#include "replay/server/sample_handler.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/round_up.h"
#include "base/status.h"
#include "replay/table/batch.h"
#include "replay/wire/messages.h"
#include "rpc/wire/bulk_codec.h"

namespace tandem::replay {
namespace {

constexpr size_t kMaxSamplerName = 256;
constexpr absl::Duration kSweepEvery = absl::Minutes(1);
constexpr absl::Duration kKeepIdle = absl::Minutes(10);

}  // namespace

std::shared_ptr<SampleHandler::Sampler> SampleHandler::FindSampler(const std::string& name) {
  if (name.empty()) return std::make_shared<Sampler>();
  const absl::Time now = options_.clock->Now();
  std::vector<std::shared_ptr<Sampler>> dropped;  // freed without the lock
  absl::MutexLock lock(&mutex_);
  if (now - last_sweep_ > kSweepEvery) DropIdle(now, &dropped);
  const auto found = samplers_.find(name);
  if (found != samplers_.end()) return found->second;
  if (samplers_.size() >= kMaxSamplers) {
    auto oldest = samplers_.begin();
    absl::Time when = absl::InfiniteFuture();
    for (auto it = samplers_.begin(); it != samplers_.end(); ++it) {
      absl::MutexLock one(&it->second->mutex);
      if (it->second->last_request < when) {
        when = it->second->last_request;
        oldest = it;
      }
    }
    samplers_.erase(oldest);
  }
  return samplers_.emplace(name, std::make_shared<Sampler>()).first->second;
}

bool SampleHandler::KeepsItems() {
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, sampler] : samplers_) {
    absl::MutexLock one(&sampler->mutex);
    for (const auto& [sequence, answer] : sampler->answers) {
      if (answer->sample != nullptr && ItemsLeaveByThemselves(answer->table->created_options())) return true;
    }
  }
  return false;
}

void SampleHandler::DropIdle(absl::Time now, std::vector<std::shared_ptr<Sampler>>* dropped) {
  last_sweep_ = now;
  for (auto it = samplers_.begin(); it != samplers_.end();) {
    bool idle = it->second.use_count() == 1;  // calls hold references of their own
    if (idle) {
      absl::MutexLock lock(&it->second->mutex);
      idle = now - it->second->last_request > kKeepIdle;
    }
    if (idle) dropped->push_back(std::move(it->second));
    it = idle ? samplers_.erase(it) : std::next(it);
  }
}

absl::StatusOr<std::shared_ptr<SampleHandler::Answer>> SampleHandler::FindAnswer(
    const v1::ReplaySampleRequest& request, const std::shared_ptr<Table>& table, Sampler* sampler,
    bool* created, std::vector<std::shared_ptr<Answer>>* replaced) {
  if (request.incarnation() < sampler->incarnation) {
    return absl::FailedPreconditionError(absl::StrCat("sampler '", request.sampler(), "' of incarnation ",
                                                      request.incarnation(), " has been replaced by one of ",
                                                      sampler->incarnation,
                                                      ", which uses the same name: stop one of the two"));
  }
  if (request.incarnation() > sampler->incarnation) {
    sampler->incarnation = request.incarnation();
    sampler->acknowledged = 0;
    for (const auto& [sequence, answer] : sampler->answers) {
      if (answer->sample != nullptr) continue;
      answer->replaced = true;
      if (answer->waiting != 0) replaced->push_back(answer);
    }
    sampler->answers.clear();
  }
  std::map<uint64_t, std::shared_ptr<Answer>>& answers = sampler->answers;
  if (!request.sampler().empty()) {
    if (request.sequence() <= request.acknowledged()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sampler '", request.sampler(), "': sequence ", request.sequence(), " and acknowledged ",
          request.acknowledged(), "; sequences count from 1 and exceed what is acknowledged"));
    }
    sampler->acknowledged = std::max(sampler->acknowledged, request.acknowledged());
    answers.erase(answers.begin(), answers.upper_bound(sampler->acknowledged));
    if (request.sequence() <= sampler->acknowledged) {
      return absl::FailedPreconditionError(
          absl::StrCat("sampler '", request.sampler(), "': the answer of sequence ", request.sequence(),
                       " has been acknowledged; all up to ", sampler->acknowledged, " have"));
    }
  }
  std::shared_ptr<Answer>& answer = answers[request.sequence()];
  *created = answer == nullptr;
  if (*created) {
    answer = std::make_shared<Answer>();
    answer->table = table;
    // Half of the message is left for what the response says of each item, and for padding.
    answer->size = {.batch = request.batch(),
                    .min_batch = request.min_batch(),
                    .max_bytes = options_.max_message_bytes / 2};
  } else if (answer->table != table || answer->size.batch != request.batch() ||
             answer->size.min_batch != request.min_batch()) {
    return absl::InvalidArgumentError(absl::StrCat("sampler '", request.sampler(), "', sequence ",
                                                   request.sequence(), ": ", request.batch(), " items of '",
                                                   request.table(), "'; before, this sequence asked for ",
                                                   answer->size.batch, " of '", answer->table->name(), "'"));
  }
  const std::shared_ptr<Answer> result = answer;
  // The oldest answers leave, but none that is still to come.
  for (auto it = answers.begin(); answers.size() > kKeptAnswers && it != answers.end();) {
    it = it->second->sample == nullptr ? std::next(it) : answers.erase(it);
  }
  if (answers.size() > kKeptAnswers && *created) {
    answers.erase(request.sequence());
    return absl::ResourceExhaustedError(absl::StrCat("sampler '", request.sampler(), "': ", kKeptAnswers,
                                                     " requests wait, and more are not possible"));
  }
  return result;
}

void SampleHandler::Handle(std::shared_ptr<rpc::ServerCall> call) {
  v1::ReplaySampleRequest request;
  absl::Status status = rpc::internal::ParseRequest(*call, &request);
  if (!status.ok()) return call->Finish(std::move(status));
  if (request.sampler().size() > kMaxSamplerName) {
    return call->Finish(
        absl::InvalidArgumentError(absl::StrCat("a sampler's name has ", request.sampler().size(),
                                                " bytes; it must have at most ", kMaxSamplerName)));
  }
  absl::StatusOr<std::shared_ptr<ServedTable>> served = tables_.Find(request.table());
  if (!served.ok()) return call->Finish(served.status());
  if (request.has_commit()) {
    const v1::ReplayCommitRequest& commit = request.commit();
    // It fails if another learner has committed since, which is no error of this request.
    (*served)
        ->table
        ->Commit(
            {.epoch = commit.epoch(), .version = commit.version(), .items_consumed = commit.items_consumed()})
        .IgnoreError();
  }
  const std::string client = call->caller().member.empty() ? request.sampler() : call->caller().member;
  const std::shared_ptr<Sampler> sampler = FindSampler(request.sampler());
  std::shared_ptr<Answer> answer;
  std::shared_ptr<rpc::ServerCall> replaced;
  std::shared_ptr<const Sample> ready;
  std::vector<std::shared_ptr<Answer>> replaced_answers;
  bool created = false;
  {
    absl::MutexLock lock(&sampler->mutex);
    sampler->last_request = options_.clock->Now();
    absl::StatusOr<std::shared_ptr<Answer>> found =
        FindAnswer(request, (*served)->table, sampler.get(), &created, &replaced_answers);
    if (!found.ok()) {
      status = found.status();
    } else if (answer = *std::move(found); answer->sample != nullptr) {
      ready = answer->sample;
    } else {
      replaced = std::exchange(answer->call, call);
      if (answer->parked != nullptr) answer->parked->Over();
      answer->parked = parked_.NewEntry();
    }
  }
  for (const std::shared_ptr<Answer>& old : replaced_answers) CancelReplaced(*old);
  if (!status.ok()) return call->Finish(std::move(status));
  if (ready != nullptr) return Respond(*ready, call.get());
  if (replaced != nullptr)
    replaced->Finish(absl::AbortedError("a repetition of this request has replaced it"));
  if (created) {
    Start(request, sampler, answer, client);
  } else {
    Park(sampler, answer, request.no_wait());
  }
}

void SampleHandler::Start(const v1::ReplaySampleRequest& request, const std::shared_ptr<Sampler>& sampler,
                          const std::shared_ptr<Answer>& answer, const std::string& client) {
  const uint64_t waiting = answer->table->StartSample(
      answer->size, client,
      [this, sampler, sequence = request.sequence(), answer](absl::StatusOr<Sample> sample) {
        Done(sampler, sequence, answer, std::move(sample));
      });
  if (waiting == 0) return;
  bool replaced = false;
  {
    absl::MutexLock lock(&sampler->mutex);
    answer->waiting = waiting;
    replaced = answer->replaced;
  }
  if (replaced) return CancelReplaced(*answer);
  Park(sampler, answer, request.no_wait());
}

void SampleHandler::CancelReplaced(const Answer& answer) {
  answer.table->Cancel(answer.waiting, absl::FailedPreconditionError(absl::StrCat(
                                           options_.server, ", table '", answer.table->name(),
                                           "': a newer sampler of the same name has replaced this one")));
}

void SampleHandler::Park(const std::shared_ptr<Sampler>& sampler, const std::shared_ptr<Answer>& answer,
                         bool no_wait) {
  std::shared_ptr<rpc::ServerCall> call;
  std::shared_ptr<ParkedCalls::Entry> parked;
  uint64_t waiting = 0;
  {
    absl::MutexLock lock(&sampler->mutex);
    // Either the call that started the sample parks the newest call, or, once that has seen `waiting`, each
    // call parks itself; an entry that two threads park is counted once.
    call = answer->call;
    parked = answer->parked;
    waiting = answer->waiting;
    if (call == nullptr || waiting == 0 || parked == answer->parking) return;
    answer->parking = parked;
  }
  const std::shared_ptr<Table> table = answer->table;
  if (no_wait) return table->Expire(waiting);
  if (!parked_.Park(parked, *call, call->request().size(), [table, waiting] { table->Expire(waiting); })) {
    return table->Cancel(waiting, absl::UnavailableError(absl::StrCat(
                                      options_.server, ": calls that wait hold ", parked_.bytes(),
                                      " bytes and may hold ", parked_.max_bytes(), " (--max-parked)")));
  }
  // The hook must not own the call, which the answer refers to; the table's end of the call is all it needs.
  std::weak_ptr<Answer> weak = answer;
  const rpc::ServerCall* const asking = call.get();
  call->OnCancel([table, waiting, weak, sampler, asking] {
    if (const std::shared_ptr<Answer> answer = weak.lock()) {
      {
        absl::MutexLock lock(&sampler->mutex);
        if (answer->call.get() != asking) return;  // a repetition waits in its place
      }
      // Unavailable: a repetition that comes just now ends with this status, and is made again.
      table->Cancel(waiting, absl::UnavailableError("the connection of the call has ended"));
    }
  });
}

void SampleHandler::Done(const std::shared_ptr<Sampler>& sampler, uint64_t sequence,
                         const std::shared_ptr<Answer>& answer, absl::StatusOr<Sample> sample) {
  std::shared_ptr<rpc::ServerCall> call;
  std::shared_ptr<ParkedCalls::Entry> parked;
  std::shared_ptr<const Sample> drawn;
  if (sample.ok()) drawn = std::make_shared<const Sample>(*std::move(sample));
  {
    absl::MutexLock lock(&sampler->mutex);
    call = std::exchange(answer->call, nullptr);
    parked = answer->parked;
    answer->sample = drawn;
    const auto found = sampler->answers.find(sequence);
    if (drawn == nullptr && found != sampler->answers.end() && found->second == answer) {
      sampler->answers.erase(found);
    }
  }
  parked->Over();
  if (drawn == nullptr) return call->Finish(sample.status());
  Respond(*drawn, call.get());
}

void SampleHandler::Respond(const Sample& sample, rpc::ServerCall* call) {
  // Shared memory is filled by one copy. A socket sends from the memory of the chunks.
  size_t total = 0;
  Batch batch = DescribeBatch(sample, &total);
  Bytes values;
  if (std::shared_ptr<char> memory = call->ResponseMemory(total)) {
    batch = GatherBatch(sample, [&memory](size_t) { return memory; });
    const char* const data = memory.get();
    values = Bytes(Slice(std::move(memory), data, total));
  } else {
    values = ShareValues(sample, batch, &buffers_);
  }
  v1::ReplaySampleResponse response;
  response.mutable_keys()->Add(batch.keys.begin(), batch.keys.end());
  response.mutable_probabilities()->Add(batch.probabilities.begin(), batch.probabilities.end());
  response.mutable_priorities()->Add(batch.priorities.begin(), batch.priorities.end());
  response.mutable_times_sampled()->Add(batch.times_sampled.begin(), batch.times_sampled.end());
  response.mutable_min_versions()->Add(batch.min_versions.begin(), batch.min_versions.end());
  response.mutable_max_versions()->Add(batch.max_versions.begin(), batch.max_versions.end());
  response.set_table_items(batch.table_items);
  response.set_mass(batch.mass);
  if (batch.committed_version) response.set_committed_version(*batch.committed_version);
  size_t offset = 0;
  for (const BatchColumn& column : batch.columns) {
    v1::ReplayBatchColumn& message = *response.add_columns();
    *message.mutable_column() = ToProto(column.column);
    message.set_steps(column.steps);
    message.mutable_lengths()->Add(column.lengths.begin(), column.lengths.end());
    message.set_offset(offset);
    message.set_bytes(column.bytes);
    offset += RoundUp(column.bytes, kBatchAlignment);
  }
  call->Finish(rpc::EncodeBulk(response, std::move(values)));
}

}  // namespace tandem::replay
