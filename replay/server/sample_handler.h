// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_SERVER_SAMPLE_HANDLER_H_
#define TANDEM_REPLAY_SERVER_SAMPLE_HANDLER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/buffer_pool.h"
#include "base/clock.h"
#include "replay/server/parked_calls.h"
#include "replay/server/served_table.h"
#include "rpc/service.h"
#include "tandem/v1/replay.pb.h"

namespace tandem::replay {

// Handles the method Sample: keeps the last answers of each sampler, so that a repeated request gets the same
// items, and copies the values of items into responses. Thread-safe. Lock order: the handler's mutex, then a
// sampler's.
class SampleHandler {
 public:
  static constexpr size_t kKeptAnswers = 16;
  static constexpr size_t kMaxSamplers = 4096;
  struct Options {
    std::string server;  // for errors: "replay/0"
    size_t max_message_bytes = size_t{1} << 30;
    Clock* clock = nullptr;
  };
  // All arguments must outlive the handler.
  SampleHandler(Options options, ServedTables* tables, ParkedCalls* parked)
      : options_(std::move(options)), tables_(*tables), parked_(*parked) {}

  // Does not block. Finishes the call, now or later.
  void Handle(std::shared_ptr<rpc::ServerCall> call);
  // Returns whether answers are kept whose items may have left their tables: those of tables that items leave
  // by themselves. Their chunks are freed once their samplers acknowledge them, or are silent for long.
  bool KeepsItems();

 private:
  // The request of one sequence, and its sample once it has been drawn.
  struct Answer {
    std::shared_ptr<rpc::ServerCall> call;        // the newest one that asks; nullptr: it has been answered
    std::shared_ptr<ParkedCalls::Entry> parked;   // of `call`
    std::shared_ptr<ParkedCalls::Entry> parking;  // the last one that was parked
    std::shared_ptr<Table> table;
    SampleSize size;
    uint64_t waiting = 0;   // the number of the table's call; 0: not known yet
    bool replaced = false;  // a newer incarnation of the sampler has come
    std::shared_ptr<const Sample> sample;
  };
  struct Sampler {
    absl::Mutex mutex;
    uint64_t incarnation ABSL_GUARDED_BY(mutex) = 0;
    uint64_t acknowledged ABSL_GUARDED_BY(mutex) = 0;
    std::map<uint64_t, std::shared_ptr<Answer>> answers ABSL_GUARDED_BY(mutex);  // by sequence
    absl::Time last_request ABSL_GUARDED_BY(mutex);
  };

  std::shared_ptr<Sampler> FindSampler(const std::string& name);
  // Moves the samplers that have asked for nothing for a while to `dropped`, with their answers.
  void DropIdle(absl::Time now, std::vector<std::shared_ptr<Sampler>>* dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the answer of this sequence, or makes one and sets `*created`. Adds the answers of an earlier
  // incarnation that wait in their tables to `replaced`.
  absl::StatusOr<std::shared_ptr<Answer>> FindAnswer(const v1::ReplaySampleRequest& request,
                                                     const std::shared_ptr<Table>& table, Sampler* sampler,
                                                     bool* created,
                                                     std::vector<std::shared_ptr<Answer>>* replaced)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(sampler->mutex);
  void Start(const v1::ReplaySampleRequest& request, const std::shared_ptr<Sampler>& sampler,
             const std::shared_ptr<Answer>& answer, const std::string& client);
  void Done(const std::shared_ptr<Sampler>& sampler, uint64_t sequence, const std::shared_ptr<Answer>& answer,
            absl::StatusOr<Sample> sample);
  // Ends the wait of an answer whose sampler has been replaced.
  void CancelReplaced(const Answer& answer);
  // Lets the answer's call wait until its deadline.
  void Park(const std::shared_ptr<Sampler>& sampler, const std::shared_ptr<Answer>& answer, bool no_wait);
  void Respond(const Sample& sample, rpc::ServerCall* call);

  const Options options_;
  ServedTables& tables_;
  ParkedCalls& parked_;
  BufferPool buffers_;
  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Sampler>> samplers_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_sweep_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_SERVER_SAMPLE_HANDLER_H_
