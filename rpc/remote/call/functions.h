// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_FUNCTIONS_H_
#define TANDEM_RPC_REMOTE_CALL_FUNCTIONS_H_

// The functions that a worker serves.
//
//   Functions functions;
//   functions.Add(kMatMul, [](Tensor a, Tensor b) -> absl::StatusOr<Tensor> { ... });
//
// A function takes the declared arguments, optionally preceded by a `const Context&`. It returns one of
//
// - the declared result R, or an absl::StatusOr<R> (absl::Status for void)
// - a std::unique_ptr<R>
// - a Future<R>, which delivers the result later; no thread waits for it
// - an absl::StatusOr of one of these

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "rpc/remote/call/batcher.h"
#include "rpc/remote/call/function.h"
#include "rpc/remote/call/invocation.h"
#include "rpc/remote/call/runtime.h"
#include "rpc/remote/call/serve.h"

namespace tandem::rpc::remote {

struct ServeOptions {
  // Runs the function on the RPC thread, which saves a hand-over between threads. For functions that take a
  // few microseconds and never block.
  bool run_inline = false;
  // The name of a group, or "". Functions of the same group run one at a time in this worker.
  std::string exclusive = "";
};

// The functions that a worker serves, by name. One thread fills it and passes it to RpcAgent::Start.
class Functions {
 public:
  struct Entry {
    FunctionId id;
    ServeOptions options;
    // Runs the function and finishes the call. Called on an RPC thread if options.run_inline, else on one of
    // the executor's threads.
    std::function<void(Runtime&, const std::shared_ptr<Invocation>&)> run;
  };

  Functions() = default;
  Functions(Functions&&) = default;
  Functions& operator=(Functions&&) = default;

  // Serves `function` with `body`. Several threads may call `body` at the same time, unless options.exclusive
  // is set. Adding a name twice ends the process.
  template <typename R, typename... Args, typename Body>
  Functions& Add(const Function<R(Args...)>& function, Body body, ServeOptions options = {}) {
    auto shared = std::make_shared<Body>(std::move(body));
    return AddEntry(
        {function.id(), std::move(options), [shared](Runtime&, const std::shared_ptr<Invocation>& call) {
           internal::Serve<R, Args...>(*shared, call);
         }});
  }

  // Serves `function` with `body`, which takes the arguments of several calls, a
  // std::vector<std::tuple<Args...>>. It returns as many absl::StatusOr<R> in the same order, or one error
  // for all of them. Callers call `function` as usual. At most options.concurrency threads call `body` at the
  // same time.
  template <typename R, typename... Args, typename Body>
  Functions& AddBatched(const Function<R(Args...)>& function, Body body, BatchOptions options = {}) {
    CheckOptions(function.name(), options);
    auto batcher = std::make_shared<Batcher<R, Args...>>(function.name(), std::move(body), options);
    Entry entry;
    entry.id = function.id();
    entry.options.run_inline = true;
    entry.run = [batcher](Runtime& runtime, const std::shared_ptr<Invocation>& call) {
      batcher->Add(runtime, call);
    };
    return AddEntry(std::move(entry));
  }

  Functions& AddEntry(Entry entry);

  // Returns null if there is no function of this name.
  const Entry* Find(absl::string_view name) const;
  // Returns the sorted names, without those of Tandem's own functions ("tandem.*", "untyped.*").
  std::vector<std::string> names() const;

 private:
  static void CheckOptions(absl::string_view function, const BatchOptions& options);

  absl::flat_hash_map<std::string, Entry> entries_;
};

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_FUNCTIONS_H_
