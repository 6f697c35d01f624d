// SPDX-License-Identifier: Apache-2.0
#include "base/crypto/pki.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::crypto {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr absl::StatusCode kBad = absl::StatusCode::kInvalidArgument;

class PkiTest : public ::testing::Test {
 protected:
  Certificates Issue(absl::Duration validity = absl::Hours(1)) const {
    return *IssueCertificate(authority_, "worker/3", now_ + validity);
  }

  const absl::Time now_ = absl::Now();
  const Certificates authority_ = *MakeCertificateAuthority("a cluster", now_ + absl::Hours(24));
};

TEST_F(PkiTest, ACertificateOfTheAuthorityIsGoodUntilItExpires) {
  const Certificates made = Issue();
  TANDEM_ASSERT_OK_AND_ASSIGN(const absl::Time until, CheckCertificates(made, now_));
  EXPECT_EQ(absl::ToUnixSeconds(until), absl::ToUnixSeconds(now_ + absl::Hours(1)));
  EXPECT_THAT(CheckCertificates(made, now_ + absl::Hours(2)), StatusIs(kBad, HasSubstr("expired")));
  EXPECT_THAT(CheckCertificates(made, absl::FromUnixSeconds(0)), StatusIs(kBad, HasSubstr("not yet valid")));
}

TEST_F(PkiTest, APairThatDoesNotMatchIsRefused) {
  Certificates mixed = Issue();
  mixed.private_key = Issue().private_key;
  EXPECT_THAT(CheckCertificates(mixed, now_), StatusIs(kBad, HasSubstr("private key is not that")));
}

TEST_F(PkiTest, AnotherAuthoritysCertificateIsRefused) {
  Certificates mixed = Issue();
  mixed.authority = MakeCertificateAuthority("another", now_ + absl::Hours(1))->authority;
  EXPECT_THAT(CheckCertificates(mixed, now_), StatusIs(kBad, HasSubstr("server's")));
}

// As while a cluster moves to a new authority.
TEST_F(PkiTest, OneOfSeveralAuthoritiesIsEnough) {
  Certificates mixed = Issue();
  mixed.authority = MakeCertificateAuthority("another", now_ + absl::Hours(1))->authority + mixed.authority;
  TANDEM_EXPECT_OK(CheckCertificates(mixed, now_));
}

TEST_F(PkiTest, TextsThatAreCutOffOrEmptyAreRefused) {
  const Certificates whole = Issue();
  for (const auto field :
       {&Certificates::authority, &Certificates::certificate, &Certificates::private_key}) {
    for (const size_t size : {size_t{0}, (whole.*field).size() / 2, (whole.*field).size() - 10}) {
      Certificates cut = whole;
      (cut.*field).resize(size);
      EXPECT_THAT(CheckCertificates(cut, now_), StatusIs(kBad)) << size;
    }
  }
}

TEST_F(PkiTest, CertificatesForClientsOnlyAndWithoutTheNameAreRefused) {
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const Certificates client,
      IssueClientCertificate(std::string(kCertificateSeedBytes, 's'), "grant/1", now_ + absl::Hours(1)));
  EXPECT_THAT(CheckCertificates(client, now_), StatusIs(kBad, HasSubstr("cannot be a server's")));
  EXPECT_THAT(CheckCertificates(authority_, now_), StatusIs(kBad));
}

TEST_F(PkiTest, AnAuthorityWithAnotherKeySignsNothing) {
  Certificates mixed = authority_;
  mixed.private_key = MakeCertificateAuthority("another", now_ + absl::Hours(1))->private_key;
  EXPECT_THAT(IssueCertificate(mixed, "worker/3", now_), StatusIs(kBad));
}

TEST_F(PkiTest, FactsAreThoseOfTheCertificate) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto own, ReadCertificates(Issue().certificate + authority_.certificate));
  ASSERT_EQ(own.size(), 2u);
  EXPECT_THAT(own[0].names, Contains("DNS:tandem"));
  EXPECT_THAT(own[0].names, Contains("URI:tandem://worker/3"));
  EXPECT_THAT(own[0].issuer, HasSubstr("a cluster"));
  EXPECT_TRUE(own[0].for_servers && own[0].for_clients && !own[0].authority);
  EXPECT_TRUE(own[1].authority);
  EXPECT_EQ(own[1].subject, own[1].issuer);
  EXPECT_THAT(ReadCertificates("nothing"), StatusIs(kBad));
}

}  // namespace
}  // namespace tandem::crypto
