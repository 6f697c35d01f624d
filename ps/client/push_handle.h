// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_PUSH_HANDLE_H_
#define TANDEM_PS_CLIENT_PUSH_HANDLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ps/client/parts.h"

namespace tandem::ps {

// The state of a push on one server, as the client knows it.
enum class PushOutcome {
  // The request was not sent, since server 0 had to see the push first (ps/server/table/global_batch.h).
  kNotSent,
  // The request was sent, and no answer has come, or one that leaves open whether the push was applied (the
  // deadline has passed, the connection broke). The outcome stays unknown if the server refuses a later
  // attempt: the refusal says nothing about the attempt whose answer was lost.
  kUnknown,
  // The server has acknowledged the push.
  kApplied,
  // The server has refused every attempt of the push. It has applied no part of it.
  kRefused,
};

// Returns "applied on servers 0 and 2, unknown on server 1" for [server] outcomes.
std::string Describe(absl::Span<const PushOutcome> outcomes);

// A push that Client::StartPush has started, for repeating it if it fails. Keeps the encoded requests, and
// gradients that have an owner (PushPart::owner), until the servers have acknowledged them or the handle is
// destroyed. This memory is outside ClientOptions::max_bytes_in_flight. While an unsuccessful push has a
// handle, it takes part in the limit of pushes under way: later pushes may have to wait for it.
// Thread-safe. The client must outlive the calls of Retry and RetryAsync.
class PushHandle {
 public:
  virtual ~PushHandle() = default;

  // Returns what is known of the push on each server: [server].
  virtual std::vector<PushOutcome> outcomes() const = 0;
  // Sends the push again to the servers that have not acknowledged it, with the same bytes and sequences: a
  // server that has applied it already acknowledges it without applying it twice. The time limit starts
  // again. Runs `done` once, like Client::PushAsync: with OK if all servers have applied the push.
  // FailedPrecondition: the push or an earlier retry is still under way; or its push epoch is over, because
  // the worker, or a new process of it, has taken another one (Client::StartPushEpoch). A server where the
  // outcome was unknown then remains unknown. A worker that must know restores a checkpoint.
  virtual void RetryAsync(PushDone done) = 0;
  // The blocking form. Must not be called on RPC threads.
  absl::Status Retry();
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_PUSH_HANDLE_H_
