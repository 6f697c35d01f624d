// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_TRANSPORT_TRACED_CALL_H_
#define TANDEM_RPC_TRANSPORT_TRACED_CALL_H_

// Records calls in traces (base/trace/trace.h) as two events. The client's event lasts from the request to
// the response, the server's from the start of the handler to its response. No trace id travels with the
// call. Both events carry a hash of the method and the first bytes of the request. The reader of the traces
// joins a server's event to the client's event with the same hash that encloses it.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/trace/trace.h"
#include "rpc/service.h"

namespace tandem::rpc {

// Returns the hash that joins the two events of a call. Depends on the bytes, not on how they are split into
// slices. Never 0. Reads at most the first 256 bytes.
uint64_t CallFlow(absl::string_view method, const Bytes& request);

// The client's event of one call. A plain value. End may be called on any thread, once.
class CallTrace {
 public:
  // Starts the event. Costs one branch while nothing is recorded.
  void Begin(absl::string_view method, const Bytes& request) {
    begin_ = trace::Begin();
    if (ABSL_PREDICT_FALSE(begin_ != 0)) flow_ = CallFlow(method, request);
  }
  void End(absl::string_view method, size_t request_bytes) const {
    if (ABSL_PREDICT_FALSE(begin_ != 0)) Record(method, request_bytes);
  }

 private:
  void Record(absl::string_view method, size_t request_bytes) const;

  uint64_t begin_ = 0;
  uint64_t flow_ = 0;
};

// Returns `service` with its calls recorded while a trace is being recorded.
Service Traced(Service service);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_TRACED_CALL_H_
