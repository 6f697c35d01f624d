// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/job_dir.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/status.h"

namespace tandem::integration {
namespace {

constexpr char kJob[] = R"(name: tiny
data:
  format: tsv
  train: log.tsv
  split: {valid: 0.1, test: 0.1, seed: 1}
  label: click
  sparse: [c1, c2, c3, c4, c5, c6]
  dense: [d1, d2]
model: {kind: deepfm, dim: 4, hidden: [8], dropout: 0.1}
embedding:
  optimizer: {kind: adagrad, lr: 0.05}
  initializer: {kind: normal, stddev: 0.01}
optimizer: {kind: adam, lr: 0.005}
train: {mode: sync, batch_size: 128, epochs: 2, seed: 1}
checkpoint: {dir: ckpt, every_epochs: 1, keep: 5}
)";

}  // namespace

JobDir::JobDir(int rows, int vocabulary) {
  Write("job.yaml", kJob);
  const testing::Finished made =
      Run({"data", "planted", "--rows", absl::StrCat(rows), "--sparse", "6", "--dense", "2",
           "--max-vocabulary", absl::StrCat(vocabulary), "--out", "log.tsv"});
  TANDEM_CHECK_MSG(made.exit_code == 0, made.err);
}

void JobDir::Write(absl::string_view name, absl::string_view text) const {
  std::ofstream out(File(name), std::ios::binary);
  out << text;
  out.close();
  TANDEM_CHECK_MSG(!out.fail(), File(name));
}

testing::Finished JobDir::Run(const Args& args) const {
  return testing::RunTandem(args, Mark(), dir_.path());
}

Args JobDir::LaunchArgs(int servers, int workers, const Args& more, const std::string& job) const {
  Args args = {"run",
               "--ps",
               absl::StrCat(servers),
               "--workers",
               absl::StrCat(workers),
               "--log-dir",
               "logs",
               "--",
               "tandem",
               "train",
               job};
  args.insert(args.end(), more.begin(), more.end());
  // Runs of one test may use the same directory one after the other.
  if (std::find(more.begin(), more.end(), "--resume") == more.end()) args.push_back("--overwrite");
  return args;
}

testing::Finished JobDir::Train(int servers, int workers, const Args& more, const std::string& job) const {
  return Run(LaunchArgs(servers, workers, more, job));
}

Json JobDir::TrainAndReport(int servers, int workers, Args more, const std::string& job) const {
  more.insert(more.end(), {"--report", "report.json", "--no-baselines"});
  std::filesystem::remove(File("report.json"));
  const testing::Finished finished = Train(servers, workers, more, job);
  EXPECT_EQ(finished.exit_code, 0) << absl::StrJoin(more, " ") << "\n" << finished.out << finished.err;
  Json report = ParseJson(testing::ReadFile(File("report.json")));
  EXPECT_FALSE(report.is_discarded()) << absl::StrJoin(more, " ");
  return report;
}

std::string JobDir::Digest(const std::string& directory) const {
  const testing::Finished finished = Run({"ckpt", "digest", directory});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  return finished.out;
}

Args JobDir::Checkpoints(const std::string& directory) const {
  Args found;
  for (const auto& entry : std::filesystem::directory_iterator(File(directory))) {
    if (std::filesystem::exists(entry.path() / "MANIFEST")) found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

pid_t JobDir::ProcessWith(const std::string& variable) const {
  const std::string word = absl::StrCat(std::string(1, '\0'), variable, std::string(1, '\0'));
  for (pid_t pid : testing::ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path()))) {
    const std::string environment = testing::ReadFile(absl::StrCat("/proc/", pid, "/environ"));
    if (absl::StrContains(absl::StrCat(std::string(1, '\0'), environment), word)) return pid;
  }
  return 0;
}

std::set<std::string> JobDir::SharedMemory() const {
  std::set<std::string> found;
  for (pid_t pid : testing::ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path()))) {
    for (const std::string& line : testing::Lines(testing::ReadFile(absl::StrCat("/proc/", pid, "/maps")))) {
      const size_t at = line.find("/dev/shm/");
      if (at != std::string::npos) found.insert(line.substr(at));
    }
  }
  return found;
}

::testing::AssertionResult JobDir::NoLeaks() const {
  const std::string marker = absl::StrCat("TANDEM_TEST_MARK=", dir_.path());
  if (testing::WaitUntilNoneMarked(marker)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "still running: " << absl::StrJoin(testing::ProcessesMarked(marker), " ");
}

Json Figures(const Json& report) {
  Json figures = {{"test", report.at("test")}, {"best_epoch", report.at("best_epoch")}};
  for (const Json& epoch : report.at("epochs")) {
    Json entry;
    for (const char* name : {"epoch", "step", "examples", "train_loss", "valid", "learning_rate", "best"}) {
      entry[name] = epoch.at(name);
    }
    figures["epochs"].push_back(entry);
  }
  return figures;
}

int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

}  // namespace tandem::integration
