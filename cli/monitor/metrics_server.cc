// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/metrics_server.h"

#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "cli/monitor/metric_families.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"

namespace tandem::cli {
namespace {

class MetricsCollector : public prometheus::Collectable {
 public:
  explicit MetricsCollector(std::function<ServerMetrics()> source) : source_(std::move(source)) {}

  // Runs on a new thread. The web server's threads have 100 KiB of stack, of which the thread-local variables
  // of the program's libraries (60 KiB for OpenBLAS) and the web server itself leave 15 KiB.
  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    try {
      std::thread([&] { families = MakeMetricFamilies(source_()); }).join();
    } catch (const std::system_error& error) {  // no thread can be started
      LogWarning(absl::StrCat("metrics: ", error.what()));
    }
    return families;
  }

 private:
  const std::function<ServerMetrics()> source_;
};

class Exposed : public MetricsServer {
 public:
  Exposed(const std::string& address, std::function<ServerMetrics()> source)
      : figures_(std::make_shared<MetricsCollector>(std::move(source))), exposer_(address) {
    exposer_.RegisterCollectable(figures_);
  }
  int port() const override { return exposer_.GetListeningPorts().at(0); }

 private:
  const std::shared_ptr<MetricsCollector> figures_;
  prometheus::Exposer exposer_;
};

}  // namespace

bool MetricsServer::available() { return true; }

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& host, int port,
                                                                    std::function<ServerMetrics()> source) {
  const std::string address =
      absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
  try {
    return std::unique_ptr<MetricsServer>(std::make_unique<Exposed>(address, std::move(source)));
  } catch (const std::exception& error) {  // the library throws if it cannot bind
    return absl::UnavailableError(absl::StrCat("cannot serve metrics at ", address, " (", error.what(),
                                               "): is the port taken? 0 lets the kernel pick one"));
  }
}

}  // namespace tandem::cli
