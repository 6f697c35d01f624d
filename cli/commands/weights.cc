// SPDX-License-Identifier: Apache-2.0
// tandem weights: serves versions of models, and lists those of a running server.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/serve.h"
#include "cli/monitor/weights_metrics.h"
#include "google/protobuf/util/json_util.h"
#include "rpc/connect.h"
#include "rpc/security/security_flags.h"
#include "tandem/v1/weights.pb.h"
#include "weights/server/weight_server.h"

namespace tandem::cli {
namespace {

struct WeightsServeFlags {
  ServingFlags serving;
  uint32_t keep = weights::ModelStoreOptions().keep;
  uint64_t max_memory = 0;
};

struct WeightsListFlags {
  std::string server;
  double timeout_seconds = 5;
  bool json = false;
};

absl::Status ServeWeights(const WeightsServeFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(Serving serving, Serving::Start());
  weights::WeightServer server({.store = {.keep = flags.keep, .max_bytes = flags.max_memory}});
  TANDEM_RETURN_IF_ERROR(serving.Serve("tandem weights serve", flags.serving,
                                       [&server] { return WeightsMetricsText(server.State()); },
                                       {server.service()}));
  server.Stop();
  serving.Drain();
  return absl::OkStatus();
}

absl::Status ListWeights(const WeightsListFlags& flags) {
  rpc::ConnectOptions options;
  options.transport = "grpc";
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rpc::Channel> channel, rpc::Connect(flags.server, options));
  tandem::v1::ListWeightsResponse state;
  TANDEM_RETURN_IF_ERROR(
      rpc::CallProto(*channel, "/tandem.v1.Weights/ListModels", tandem::v1::ListWeightsRequest(), &state,
                     {.timeout = absl::Seconds(flags.timeout_seconds), .idempotent = true}));
  if (flags.json) {
    std::string json;
    google::protobuf::util::JsonPrintOptions print;
    print.preserve_proto_field_names = true;
    print.always_print_primitive_fields = true;
    const auto status = google::protobuf::util::MessageToJsonString(state, &json, print);
    if (!status.ok()) return absl::InternalError(status.ToString());
    std::printf("%s\n", json.c_str());
    return absl::OkStatus();
  }
  if (state.models().empty()) std::printf("no models yet\n");
  if (state.uploads() > 0 || state.dropped_uploads() > 0) {
    std::printf("uploads: %llu under way with %llu bytes, %llu dropped\n",
                static_cast<unsigned long long>(state.uploads()),
                static_cast<unsigned long long>(state.upload_bytes()),
                static_cast<unsigned long long>(state.dropped_uploads()));
  }
  for (const tandem::v1::WeightsModelState& model : state.models()) {
    const auto count = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    std::printf("%s\n", model.model().c_str());
    if (model.has_head()) {
      std::printf("  %-10s %llu, step %llu, published %.1f s ago by %s%s\n", "version",
                  count(model.head().version()), count(model.head().step()), model.seconds_since_publish(),
                  model.head().publisher().c_str(), model.head().last() ? "; the last one" : "");
      std::printf("  %-10s %d, %llu bytes\n", "tensors", model.head().tensors_size(), count(model.bytes()));
    } else {
      std::printf("  %-10s nothing published yet\n", "version");
    }
    std::printf("  %-10s %s\n", "kept", absl::StrJoin(model.kept(), ", ").c_str());
    std::printf("  %-10s %llu publishes, %llu refused, %llu pulls; %llu readers wait\n", "calls",
                count(model.publishes()), count(model.refused()), count(model.pulls()),
                count(model.waiting()));
  }
  return absl::OkStatus();
}

}  // namespace

void AddWeights(CLI::App& app, CommandContext* context) {
  CLI::App* weights = app.add_subcommand("weights", "Serve versions of models, and list them");
  weights->require_subcommand(1);
  auto serve_flags = std::make_shared<WeightsServeFlags>();
  CLI::App* serve = weights->add_subcommand("serve", "Serve a weight store; prints the address");
  serve->footer("Learners publish versions, actors pull them. Serves until SIGTERM or SIGINT.");
  AddServingFlags(serve, &serve_flags->serving);
  serve->add_option("--keep", serve_flags->keep, "Versions of each model that can be pulled")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  serve
      ->add_option("--max-memory", serve_flags->max_memory,
                   "Memory of all versions, in bytes or as 64MiB; a commit beyond it drops older versions of "
                   "its model, "
                   "and is refused if that does not suffice [0: no limit]")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  serve->callback(
      [serve_flags, context] { context->exit_code = Report("weights serve", ServeWeights(*serve_flags)); });
  auto list_flags = std::make_shared<WeightsListFlags>();
  CLI::App* list = weights->add_subcommand("list", "The models: their heads, kept versions, readers");
  rpc::AddSecurityFlags(list);
  list->add_option("--server", list_flags->server, "host:port or unix:/path of the weight server")
      ->required();
  list->add_option("--timeout", list_flags->timeout_seconds, "Seconds to wait for the server")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  list->add_flag("--json", list_flags->json, "The same as one JSON object");
  list->callback(
      [list_flags, context] { context->exit_code = Report("weights list", ListWeights(*list_flags)); });
}

}  // namespace tandem::cli
