// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/certificate_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/crypto/pki.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/connect.h"
#include "rpc/security/transport_security.h"
#include "rpc/server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr absl::Duration kSwapTimeout = absl::Seconds(60);

class CertificateFilesTest : public ::testing::Test {
 protected:
  CertificateFilesTest() { Write(Issue()); }

  crypto::Certificates Issue(absl::Duration validity = absl::Hours(24 * 30)) const {
    return *crypto::IssueCertificate(authority_, "worker/3", absl::Now() + validity);
  }
  void Write(const crypto::Certificates& certificates) const {
    Replace(paths_.private_key, certificates.private_key);
    Replace(paths_.certificate, certificates.certificate);
    Replace(paths_.authority, certificates.authority);
  }
  static void Replace(const std::string& path, const std::string& text) {
    std::ofstream(path + ".new") << text;
    ::chmod((path + ".new").c_str(), 0600);
    ASSERT_EQ(::rename((path + ".new").c_str(), path.c_str()), 0);
  }
  static bool Await(const std::function<bool()>& wanted) {
    const absl::Time deadline = MonotonicNow() + kSwapTimeout;
    while (!wanted() && MonotonicNow() < deadline) absl::SleepFor(absl::Milliseconds(5));
    return wanted();
  }

  const tandem::testing::TempDir dir_;
  const crypto::Certificates authority_ =
      *crypto::MakeCertificateAuthority("a cluster", absl::Now() + absl::Hours(24 * 365));
  const CertificateFiles::Paths paths_ = {.certificate = dir_.File("tls.crt"),
                                          .private_key = dir_.File("tls.key"),
                                          .authority = dir_.File("ca.crt")};
  const absl::Duration kOften = absl::Milliseconds(10);
};

TEST_F(CertificateFilesTest, RenewedFilesAreTakenOverAndTheirCopiesToo) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto files, CertificateFiles::Watch(paths_, kOften));
  const auto before = files->context();
  const CertificateFiles::Paths copies = files->copies();
  const crypto::Certificates renewed = Issue(absl::Hours(24 * 60));
  Write(renewed);
  ASSERT_TRUE(
      Await([&] { return files->swaps() >= 1 && *ReadFile(copies.certificate) == renewed.certificate; }));
  EXPECT_EQ(*ReadFile(copies.private_key), renewed.private_key);
  EXPECT_NE(files->context(), before);
  EXPECT_GT(files->expires(), absl::Now() + absl::Hours(24 * 59));
}

TEST_F(CertificateFilesTest, FilesThatDoNotPassChangeNothingAndTheNextGoodOnesAreTaken) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto files, CertificateFiles::Watch(paths_, kOften));
  const auto before = files->context();
  const std::string good = *ReadFile(files->copies().certificate);
  for (const std::string& bad :
       {std::string("nothing"), Issue().certificate, good.substr(0, good.size() / 2)}) {
    const int64_t refusals = files->refusals();
    Replace(paths_.certificate, bad);
    ASSERT_TRUE(Await([&] { return files->refusals() > refusals; }));
    EXPECT_EQ(files->context(), before);
    EXPECT_EQ(*ReadFile(files->copies().certificate), good);
  }
  Write(Issue());
  EXPECT_TRUE(Await([&] { return files->swaps() == 1; }));
}

TEST_F(CertificateFilesTest, AFileThatIsMissingForAMomentIsNoNews) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto files, CertificateFiles::Watch(paths_, kOften));
  ::unlink(paths_.certificate.c_str());
  Write(Issue());
  EXPECT_TRUE(Await([&] { return files->swaps() == 1; }));
}

TEST_F(CertificateFilesTest, AtTheStartMistakesAreErrors) {
  Replace(paths_.certificate, Issue().certificate);
  EXPECT_THAT(CertificateFiles::Watch(paths_),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("private key")));
  ::unlink(paths_.authority.c_str());
  EXPECT_THAT(CertificateFiles::Watch(paths_), StatusIs(absl::StatusCode::kNotFound, HasSubstr("ca.crt")));
  Write(Issue());
  ::chmod(paths_.private_key.c_str(), 0644);
  EXPECT_THAT(CertificateFiles::Watch(paths_),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod o-r")));
}

// The files of a process are chosen once, so no other test of this program may connect over TCP.
TEST_F(CertificateFilesTest, NoCallFailsWhileCertificatesAreSwappedUnderLoad) {
  ::setenv(kTlsCertVariable, paths_.certificate.c_str(), 1);
  EXPECT_THAT(CertificateFiles::OfProcess(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("all or none")));
  ::setenv(kTlsKeyVariable, paths_.private_key.c_str(), 1);
  ::setenv(kTlsCaVariable, paths_.authority.c_str(), 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(CertificateFiles* const files, CertificateFiles::OfProcess());
  Service echo{.name = "test.Echo", .methods = {}};
  echo.methods.emplace_back("Call", Right::kObserve,
                            [](const std::shared_ptr<ServerCall>& call) { call->Finish(Bytes("here")); });
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server, Server::Start({.listen = "127.0.0.1:0"}, {echo}));
  const std::string target = absl::StrCat("127.0.0.1:", server->port());
  std::atomic<bool> stops = false;
  std::atomic<int64_t> calls = 0, failures = 0;
  std::string why;
  absl::Mutex mutex;
  std::vector<std::thread> clients;
  for (int c = 0; c < 2; ++c) {
    clients.emplace_back([&, fresh = c == 0] {  // one connects anew for each call
      std::unique_ptr<Channel> channel;
      while (!stops) {
        if (channel == nullptr || fresh) channel = *Connect(target, {.transport = "grpc"});
        // Without a retry: a connection that fails once is a failure.
        const auto answer = channel->Call("/test.Echo/Call", Bytes(), {.timeout = kSwapTimeout});
        ++calls;
        if (answer.ok()) continue;
        ++failures;
        absl::MutexLock lock(&mutex);
        why = answer.status().ToString();
      }
    });
  }
  for (int swap = 1; swap <= 3; ++swap) {
    const int64_t before = calls;
    Write(Issue(absl::Hours(24 * (30 + swap))));
    EXPECT_TRUE(Await([&] { return files->swaps() >= swap; }));
    EXPECT_TRUE(Await([&] { return calls > before + 100; }));
  }
  stops = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(failures, 0) << "of " << calls << ": " << why;
}

}  // namespace
}  // namespace tandem::rpc
