// tandem run: a whole job on this machine.

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/commands.h"
#include "cli/launch/launcher.h"
#include "cli/servers/find_servers.h"
#include "collectives/store/store_server.h"

extern char** environ;

namespace tandem::cli {
namespace {

constexpr int kCannotExecute = 126;  // as in sh(1)
constexpr int kNotFound = 127;

struct RunFlags {
  int servers = 0;
  int workers = 1;
  std::string log_dir;
  double grace_seconds = 5;
  double timeout_seconds = 0;
  std::string spill_dir;
  int metrics_port = -1;  // of ps/0; ps/i has this + i
};

using Variables = std::map<std::string, std::string>;

Variables OwnEnvironment() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (const size_t equals = text.find('='); equals != std::string::npos) {
      variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return variables;
}

std::vector<std::string> ToStrings(const Variables& variables) {
  std::vector<std::string> strings;
  for (const auto& [name, value] : variables) strings.push_back(absl::StrCat(name, "=", value));
  return strings;
}

// Where server i puts rows that do not fit its memory.
std::string ServerSpillDir(const RunFlags& flags, int i) { return absl::StrCat(flags.spill_dir, "/ps-", i); }

// Servers remove theirs; this is for those that were killed.
void RemoveSpillDirs(const RunFlags& flags) {
  std::error_code ignored;
  for (int i = 0; i < flags.servers; ++i) std::filesystem::remove_all(ServerSpillDir(flags, i), ignored);
  std::filesystem::remove(flags.spill_dir, ignored);  // if nothing else is in it
}

// Of the workers when `role` is "worker", else of the parameter servers.
Variables JobEnvironment(const RunFlags& flags, const std::string& run_id, int store_port,
                         const std::string& role) {
  Variables variables = OwnEnvironment();
  // What an outer job told this launcher is not for its children.
  for (const char* name : {"RANK", "LOCAL_RANK", "TANDEM_PS_INDEX", "TANDEM_TERMINAL"}) variables.erase(name);
  variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = absl::StrCat(flags.workers);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = absl::StrCat(store_port);
  variables["TANDEM_STORE"] = absl::StrCat("127.0.0.1:", store_port);
  variables["TANDEM_ROLE"] = role;
  variables["TANDEM_NUM_PS"] = absl::StrCat(flags.servers);
  variables["TANDEM_RUN_ID"] = run_id;
  // Many processes share the machine; a program that wants threads says so.
  variables.try_emplace("OMP_NUM_THREADS", "1");
  return variables;
}

absl::Status StartAll(Launcher& launcher, const RunFlags& flags, const std::string& program,
                      const std::vector<std::string>& args, const std::string& self,
                      const std::string& run_id, int store_port) {
  for (int i = 0; i < flags.servers; ++i) {
    Variables variables = JobEnvironment(flags, run_id, store_port, "ps");
    variables["TANDEM_PS_INDEX"] = absl::StrCat(i);
    variables["TANDEM_SPILL_DIR"] = ServerSpillDir(flags, i);
    ProcessSpec spec{.name = absl::StrCat("ps/", i), .server = true, .program = self};
    spec.args = {"tandem", "ps", "--index", absl::StrCat(i), "--num-servers", absl::StrCat(flags.servers)};
    if (flags.metrics_port >= 0) {
      // 0 lets the kernel pick one for each; their logs say which.
      const int port = flags.metrics_port == 0 ? 0 : flags.metrics_port + i;
      spec.args.insert(spec.args.end(), {"--metrics-port", absl::StrCat(port)});
    }
    spec.environment = ToStrings(variables);
    TANDEM_RETURN_IF_ERROR(launcher.Start(spec));
  }
  for (int i = 0; i < flags.workers; ++i) {
    Variables variables = JobEnvironment(flags, run_id, store_port, "worker");
    variables["RANK"] = variables["LOCAL_RANK"] = absl::StrCat(i);
    // Rank 0 writes into a pipe, but may draw as if on a terminal.
    if (i == 0 && launcher.console().sink(Console::kOut).is_terminal()) variables["TANDEM_TERMINAL"] = "1";
    ProcessSpec spec{.name = absl::StrCat("worker/", i), .front = i == 0, .program = program, .args = args};
    spec.environment = ToStrings(variables);
    TANDEM_RETURN_IF_ERROR(launcher.Start(spec));
  }
  return absl::OkStatus();
}

int Fail(Launcher& launcher, const absl::Status& status) {
  launcher.console().Say(status.message());
  return absl::IsNotFound(status) ? kNotFound : absl::IsPermissionDenied(status) ? kCannotExecute : 1;
}

int Run(RunFlags flags, const std::vector<std::string>& command) {
  // First of all: it must be created while there is one thread.
  absl::StatusOr<std::unique_ptr<Launcher>> made = Launcher::Create();
  if (!made.ok()) return Report("run", made.status());
  Launcher& launcher = **made;

  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    return Fail(launcher, absl::InternalError(absl::StrCat("cannot read /proc/self/exe: ", error.message())));
  absl::StatusOr<std::string> program = command[0] == "tandem" ? self : FindProgram(command[0]);
  if (!program.ok()) return Fail(launcher, program.status());

  const std::string run_id =
      absl::StrCat(absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()), "-", ::getpid());
  LauncherOptions options;
  options.log_dir = flags.log_dir.empty() ? absl::StrCat("runs/", run_id, "/logs") : flags.log_dir;
  if (flags.spill_dir.empty()) flags.spill_dir = absl::StrCat(options.log_dir, "/spill");
  options.grace = absl::Seconds(flags.grace_seconds);
  if (flags.timeout_seconds > 0) options.timeout = absl::Seconds(flags.timeout_seconds);
  std::filesystem::create_directories(options.log_dir, error);
  if (error) {
    return Fail(launcher,
                absl::UnavailableError(absl::StrCat("cannot make the log directory '", options.log_dir,
                                                    "': ", error.message(), "; choose another --log-dir")));
  }

  absl::StatusOr<std::unique_ptr<collectives::StoreServer>> store =
      collectives::StoreServer::Start("127.0.0.1:0");
  if (!store.ok()) return Fail(launcher, Annotate(store.status(), "cannot serve the job's store"));
  // For `tandem top` and `tandem table`.
  if (absl::Status written =
          WriteJobFile(options.log_dir, run_id, absl::StrCat("127.0.0.1:", (*store)->port()), flags.servers);
      !written.ok()) {
    return Fail(launcher, written);
  }
  launcher.console().Say(absl::StrCat(flags.servers, " parameter servers, ", flags.workers,
                                      " workers; logs in ", options.log_dir));
  launcher.Configure(std::move(options));
  if (absl::Status started = StartAll(launcher, flags, *program, command, self, run_id, (*store)->port());
      !started.ok()) {
    return Fail(launcher, started);
  }
  const int exit_code = launcher.Run((*store)->membership());
  RemoveSpillDirs(flags);
  return exit_code;
}

}  // namespace

void AddRun(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* run =
      app.add_subcommand("run", "Start parameter servers and copies of a program as a job on this machine");
  run->footer(
      "Usage: tandem run [OPTIONS] -- PROGRAM [ARGUMENTS...]\n"
      "Each copy is told its place by RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
      "MASTER_PORT,\n"
      "as torchrun does. When one process fails the others are stopped, and its exit code is passed on.\n"
      "PROGRAM 'tandem' is this program: tandem run --ps 2 --workers 2 -- tandem train jobs/insteval.yaml");
  run->add_option("--ps", flags->servers, "Parameter servers")
      ->check(CLI::Range(0, 256))
      ->capture_default_str();
  run->add_option("--workers", flags->workers, "Copies of PROGRAM")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  run->add_option("--log-dir", flags->log_dir, "Where worker-0.log, ps-0.log, ... go [runs/<run id>/logs]");
  run->add_option(
      "--spill-dir", flags->spill_dir,
      "Where servers put rows of tables with `spill` that do not fit their memory; removed at the "
      "end [LOG_DIR/spill]");
  run->add_option("--grace", flags->grace_seconds,
                  "Seconds between SIGTERM and SIGKILL when the job is stopped")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  run->add_option("--timeout", flags->timeout_seconds, "Seconds after which the job is stopped; 0: never")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  run->add_option(
         "--metrics-port", flags->metrics_port,
         "Parameter server i serves /metrics for Prometheus at this port + i; 0: the kernel picks [none do]")
      ->check(CLI::Range(0, 65535 - 256));
  run->callback([flags, context] {
    if (context->after_dashes.empty())
      throw CLI::ValidationError("PROGRAM", "is missing: tandem run [OPTIONS] -- PROGRAM ...");
    context->exit_code = Run(*flags, context->after_dashes);
  });
}

}  // namespace tandem::cli
