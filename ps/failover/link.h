// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_LINK_H_
#define TANDEM_PS_FAILOVER_LINK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/bytes.h"

namespace tandem::ps {

// The stream of records of one link, as numbered messages: what waits to be sent, and what was sent and is
// not stored yet. Not thread-safe: ShippedLog's mutex guards it.
class LinkStream {
 public:
  using Sent = std::function<void(const absl::Status&)>;

  // A run of encoded records.
  struct Chunk {
    Slice records;
    bool live = false;  // records of the log, not of the copy
    bool end = false;   // the record END or CONTINUE
    Sent sent;          // runs when the chunk is part of a message; may be empty
  };
  struct Message {
    uint64_t number = 0;
    Bytes payload;
    uint64_t live_bytes = 0;
    bool under_way = false;                      // a call carries it
    absl::Time retry_at = absl::InfinitePast();  // not before, if no call carries it
  };

  LinkStream(size_t message_bytes, size_t max_in_flight)
      : message_bytes_(message_bytes), max_in_flight_(max_in_flight) {}

  // Records of the log go to this link. True from the beginning of the copying on.
  bool live = false;

  // Puts a chunk at the end of the stream.
  void Add(Chunk chunk);
  // Puts the state, of which the stream has none yet, at its beginning, before which nothing is sent.
  void AddState(Slice state);

  // Makes the stream one without a state: what is added is sent.
  void BeginWithoutState() { has_state_ = true; }

  // Returns the messages to be sent now: those whose call has failed, then new ones of about message_bytes as
  // long as fewer than max_in_flight are not stored. Marks them as under way. Moves the `sent` functions of
  // what they contain to `sent`. The pointers are valid until SetStored.
  std::vector<const Message*> Take(absl::Time now, std::vector<Sent>* sent);
  // Returns when Take may have to be called again because of a message whose call has failed; InfiniteFuture
  // if there is none.
  absl::Time RetryTime() const;
  // Returns whether Take would return something for another reason.
  bool CanSend() const;

  // The call that carried message `number` has ended without an answer: it is sent again, not before
  // `retry_at`.
  void Failed(uint64_t number, absl::Time retry_at);
  // All messages up to `number` are stored. Returns false if that many were never sent.
  bool SetStored(uint64_t number);
  // Moves the `sent` functions of what was not sent to `sent`.
  void Abandon(std::vector<Sent>* sent);

  uint64_t unstored_live_bytes() const { return live_bytes_; }
  // Returns the number of messages that were sent and are not stored.
  size_t in_flight() const { return in_flight_.size(); }
  // Returns whether END or CONTINUE is stored: the copy is whole.
  bool complete() const { return end_number_ != 0 && stored_ >= end_number_; }

 private:
  const size_t message_bytes_, max_in_flight_;
  bool has_state_ = false;
  std::deque<Chunk> waiting_;
  std::deque<Message> in_flight_;  // in the order of their numbers, without gaps
  uint64_t last_ = 0;              // number of the last message
  uint64_t stored_ = 0;
  uint64_t end_number_ = 0;  // of the message with END or CONTINUE; 0: it was not sent
  uint64_t live_bytes_ = 0;  // waiting or in flight
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_LINK_H_
