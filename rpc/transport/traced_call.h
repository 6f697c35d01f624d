#ifndef TANDEM_RPC_TRANSPORT_TRACED_CALL_H_
#define TANDEM_RPC_TRANSPORT_TRACED_CALL_H_

// Calls in traces (base/trace/trace.h): the caller's half from the request to the answer, the server's from
// the handler's start to its answer. Nothing travels with the call to join them: both know its method and its
// first bytes, whose hash they note, and whoever puts traces together sees which server's half lies within
// which caller's.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/trace/trace.h"
#include "rpc/service.h"

namespace tandem::rpc {

// Of the bytes as they travel, whatever slices they lie in. Never 0. Reads at most 256 of them.
uint64_t CallFlow(absl::string_view method, const Bytes& request);

// A caller's half. A plain value; End from any thread, once.
class CallTrace {
 public:
  // Costs a branch while nothing is recorded.
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

// The same service, whose calls are recorded while anything is.
Service Traced(Service service);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_TRANSPORT_TRACED_CALL_H_
