// SPDX-License-Identifier: Apache-2.0
#include "python/src/py_client.h"

#include <exception>
#include <optional>
#include <utility>

#include "python/src/errors.h"

namespace nb = nanobind;

namespace tandem::python {

ConnectionInUse::~ConnectionInUse() {
  // While calls are accepted, the client has a reference too. Afterwards this one may be the last, and the
  // destructor of the connection waits for threads.
  if (connection_ == nullptr || !connection_->calls()->refuses()) return;
  GilReleased release;
  connection_.reset();
}

PyClient::PyClient(std::unique_ptr<Connection> connection)
    : rank_(connection->rank()),
      world_size_(connection->world_size()),
      num_servers_(connection->client()->num_servers()),
      connection_(LeakAfterFork(std::move(connection))),
      released_(std::make_shared<ReleasedObjects>()) {}
PyClient::~PyClient() {
  GilReleased release;
  connection_.reset();
}

void PyClient::Close(int ending, const std::string& reason) {
  std::shared_ptr<Connection> connection = std::exchange(connection_, nullptr);
  if (connection == nullptr || ForkGeneration() != made_) return;
  connection->calls()->Refuse();
  Ending how = static_cast<Ending>(ending);
  std::string why = reason;
  std::exception_ptr raised;
  if (how != Ending::kFailed) {
    try {
      WaitInSlices(-1, [&](double seconds) { return connection->calls()->WaitForEnd(seconds); });
    } catch (...) {
      raised = std::current_exception();
      how = Ending::kFailed;
      why = "the program was interrupted while it closed its client";
    }
  }
  {
    GilReleased release;
    connection->End(how, why);
    connection.reset();
  }
  released_->Clear();
  if (raised != nullptr) std::rethrow_exception(raised);
}

ConnectionInUse PyClient::Use() {
  if (ForkGeneration() != made_) {
    Raise(absl::FailedPreconditionError(
        "this process was forked after the client had connected, and threads do not "
        "survive a fork; start the process by multiprocessing's spawn or forkserver, and "
        "connect in it"));
  }
  released_->Clear();  // may run code of Python that closes the client
  const std::shared_ptr<Connection> connection = connection_;
  if (connection == nullptr) Raise(absl::CancelledError("this client is closed"));
  std::optional<CallCounter::Token> call = CallCounter::Begin(connection->calls());
  if (!call.has_value()) Raise(absl::CancelledError("this client is closed"));
  RaiseIfError(connection->job_status());
  return ConnectionInUse(connection, *std::move(call));
}

ConnectionInUse PyClient::UseToPush() {
  ConnectionInUse in_use = Use();
  if (!in_use.connection()->ready_to_push()) {
    RaiseIfError(Blocking([](Connection& connection) { return connection.PreparePush(); }));
  }
  return in_use;
}

void PyClient::DropCached() {
  Use().client()->DropCached();
  std::unordered_map<std::string, std::pair<uint64_t, nb::tuple>> dropped;
  dropped.swap(pulled_);
}

}  // namespace tandem::python
