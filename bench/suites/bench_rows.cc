// SPDX-License-Identifier: Apache-2.0
// `tandem bench rows`: memory and speed of a table of many rows in one process.

#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/number_flag.h"
#include "base/status.h"
#include "bench/suites/commands.h"
#include "bench/suites/own_processes.h"
#include "bench/suites/row_bench.h"
#include "nlohmann/json.hpp"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;

void PrintText(const RowBenchOptions& options, uint64_t payload, const RowBenchResult& result) {
  const auto rows = static_cast<double>(options.rows);
  const auto line = [](const std::string& name, const std::string& value) {
    std::fputs(absl::StrFormat("%-22s %s\n", name, value).c_str(), stdout);
  };
  const auto millions = [](double rate) { return absl::StrFormat("%.3f million rows a second", rate / 1e6); };
  line("rows", absl::StrFormat("%d of %d x %s, %s: %d bytes of payload", options.rows, options.dim,
                               options.row_type, options.optimizer, payload));
  line("made", millions(result.load_rows_per_s));
  line("read", absl::StrCat(millions(result.lookup_rows_per_s), ", ", options.batch, " random ids a call, ",
                            options.threads, options.threads == 1 ? " thread" : " threads"));
  line("updated", millions(result.update_rows_per_s));
  line("memory of the table",
       absl::StrFormat("%.3f GB, %.1f bytes a row", 1e-9 * static_cast<double>(result.table_bytes),
                       static_cast<double>(result.table_bytes) / rows));
  line("resident",
       absl::StrFormat("%.3f GB, the whole process", 1e-9 * static_cast<double>(result.resident_bytes)));
  line("longest pause", absl::StrFormat("%.0f us while rows were made, %.0f us to the end",
                                        result.load_longest_pause_us, result.longest_pause_us));
}

void PrintJson(const RowBenchOptions& options, uint64_t payload, const RowBenchResult& result) {
  const Json json = {
      {"rows", options.rows},
      {"dim", options.dim},
      {"row_type", options.row_type},
      {"optimizer", options.optimizer},
      {"batch", options.batch},
      {"threads", options.threads},
      {"payload_bytes", payload},
      {"load_rows_per_s", result.load_rows_per_s},
      {"lookup_rows_per_s", result.lookup_rows_per_s},
      {"update_rows_per_s", result.update_rows_per_s},
      {"table_bytes", result.table_bytes},
      {"bytes_per_row", static_cast<double>(result.table_bytes) / static_cast<double>(options.rows)},
      {"resident_bytes", result.resident_bytes},
      {"load_longest_pause_us", result.load_longest_pause_us},
      {"longest_pause_us", result.longest_pause_us}};
  std::fputs((json.dump() + "\n").c_str(), stdout);
}

absl::Status Run(const RowBenchOptions& options, bool json) {
  TANDEM_ASSIGN_OR_RETURN(const v1::TableConfig config, TableOf(options));
  TANDEM_ASSIGN_OR_RETURN(const RowBenchResult result, RunRowBench(options, *launcher::ThisMachine()));
  (json ? PrintJson : PrintText)(options, PayloadBytes(config), result);
  return absl::OkStatus();
}

}  // namespace

void AddBenchRows(CLI::App* bench, CommandContext* context) {
  CLI::App* command = bench->add_subcommand(
      "rows",
      "Fill a table in this process: how fast its rows are made, read and updated, and what they take");
  auto options = std::make_shared<RowBenchOptions>();
  auto json = std::make_shared<bool>(false);
  const auto add = [command](const char* name, auto* value, const char* help) {
    return command->add_option(name, *value, help)->capture_default_str();
  };
  LimitTo(Between(1, 1e12), add("--rows", &options->rows, "Rows of the table"));
  LimitTo(Between(1, 4096), add("--dim", &options->dim, "Numbers of an embedding"));
  add("--row-type", &options->row_type, "How embeddings are stored: f32, f16 or bf16");
  add("--optimizer", &options->optimizer, "sgd, adagrad, rowwise_adagrad or adam");
  LimitTo(Between(1, 1 << 24), add("--batch", &options->batch, "Ids a call"));
  LimitTo(Between(1, 1024),
          add("--threads", &options->threads, "Threads that read, and then update, at once"));
  LimitTo(Range{.min = 0, .max = 3600, .above_min = true},
          add("--seconds", &options->seconds, "How long rows are read, and then updated"));
  command->add_flag("--json", *json,
                    "Print one JSON object: the flags, payload_bytes, load_rows_per_s, lookup_rows_per_s, "
                    "update_rows_per_s, table_bytes, bytes_per_row, resident_bytes, load_longest_pause_us, "
                    "longest_pause_us");
  command->callback(
      [options, json, context] { context->exit_code = ReportBench("bench rows", Run(*options, *json)); });
}

}  // namespace tandem::bench
