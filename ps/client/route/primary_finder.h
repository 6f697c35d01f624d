// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_ROUTE_PRIMARY_FINDER_H_
#define TANDEM_PS_CLIENT_ROUTE_PRIMARY_FINDER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/channel.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Knows the primary of a shard: it asks the shard's copies (GetPlacement) and the job's store. It believes
// only placement documents of a larger version than the known one.
//
// While the primary serves, one question is open at it, and one at a follower. Each is answered when the
// document or the role of that copy changes. After Suspect(), or if the primary does not answer, all known
// copies are asked at once, and again and again with pauses of 5 to 50 ms. The store is then asked every 250
// ms.
//
// Thread-safe. Has one thread, and a second one while it asks the store.
class PrimaryFinder {
 public:
  struct Options {
    uint32_t shard = 0;
    // The first one is the primary at the start.
    std::vector<std::string> addresses;
    // As RoutedChannelOptions::locate; may be null.
    std::function<absl::StatusOr<v1::ShardPlacement>(absl::Duration timeout)> locate;
    // Returns a channel for questions to a copy. Called on the finder's thread.
    std::function<absl::StatusOr<std::unique_ptr<rpc::Channel>>(const std::string& address)> open;
    // Called on the finder's thread, without locks; may block. `moved`: another process than before is the
    // primary. Otherwise the primary has said, after Suspect, that it serves. After an error the finder goes
    // on as after Suspect.
    std::function<absl::Status(const std::string& address, bool moved)> found;
    // Called on the finder's thread, without locks, after each newer document; must not block. May be null.
    std::function<void(const v1::ShardPlacement& placement)> placed;
    // Called on the finder's thread, without locks, again and again, at least every two seconds. Returns when
    // it wants to be called next.
    std::function<absl::Duration()> tidy;
  };
  explicit PrimaryFinder(Options options);
  // Calls Stop.
  ~PrimaryFinder();

  // Starts the thread. To be called once.
  void Start();
  // Ends the threads. Waits for the calls of `open`, `found`, `tidy` and `locate` that are under way; none
  // begins afterwards. Idempotent.
  void Stop();
  // Reports that calls to the present primary fail, and how. Does not block.
  void Suspect(absl::string_view why);
  // Returns what the copies and the store said last, for messages.
  std::string Tried() const;

 private:
  struct Copy {
    explicit Copy(std::string address) : address(std::move(address)) {}
    const std::string address;
    std::unique_ptr<rpc::Channel> channel;  // only the finder's thread uses it
    // Guarded by mutex_:
    uint64_t question = 0;                   // the number of the open question; 0: none is
    uint64_t last_question = 0;              // the number of the last question
    absl::Time next = absl::InfinitePast();  // the time of the next question
    int failures = 0;                        // in a row
    std::string last_answer = "not asked yet";
  };
  struct Question {
    std::shared_ptr<Copy> copy;
    uint64_t number;
    v1::GetPlacementRequest request;
  };

  void Run();
  void RunLocator();
  // Returns the questions that are due, and lowers *next to the time of the next one.
  std::vector<Question> DueQuestions(absl::Time* next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the follower to ask while the primary serves; null if there is none.
  const Copy* WatchedFollower() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Ask(Question question) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnAnswer(const std::shared_ptr<Copy>& copy, uint64_t number, absl::StatusOr<Bytes> answer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Learn(const v1::ShardPlacement& placement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the copy at `address` the most recent one.
  void AddCopy(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets copies that no document of late has named.
  void ForgetOldCopies() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SuspectLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool look_ ABSL_GUARDED_BY(mutex_) = false;             // something has changed since the thread looked
  v1::ShardPlacement placement_ ABSL_GUARDED_BY(mutex_);  // version 0: not known yet
  std::string primary_ ABSL_GUARDED_BY(mutex_);           // its address
  std::vector<std::shared_ptr<Copy>> copies_ ABSL_GUARDED_BY(mutex_);  // the most recent ones first
  // Copies whose channels the finder's thread is to close; a channel must not be closed in its own callback.
  std::vector<std::shared_ptr<Copy>> forgotten_ ABSL_GUARDED_BY(mutex_);
  uint64_t questions_ ABSL_GUARDED_BY(mutex_) = 0;  // the number of the last one
  bool suspect_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t suspected_at_ ABSL_GUARDED_BY(mutex_) = 0;  // the last question before the suspicion
  bool learned_ ABSL_GUARDED_BY(mutex_) = false;       // `placed` must be told of placement_
  bool moved_ ABSL_GUARDED_BY(mutex_) = false;         // `found` must be told of another primary
  bool confirmed_ ABSL_GUARDED_BY(mutex_) = false;     // `found` must be told that the primary serves
  size_t watched_ ABSL_GUARDED_BY(mutex_) = 0;         // rotates among the followers
  std::string store_said_ ABSL_GUARDED_BY(mutex_) = "not asked yet";
  std::thread thread_;
  std::thread locator_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_ROUTE_PRIMARY_FINDER_H_
