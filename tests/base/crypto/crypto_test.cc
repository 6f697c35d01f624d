// SPDX-License-Identifier: Apache-2.0
#include "base/crypto/crypto.h"

#include <set>
#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace tandem::crypto {
namespace {

std::string Hex(absl::string_view bytes) { return absl::BytesToHexString(bytes); }
std::string Bytes(absl::string_view hex) { return absl::HexStringToBytes(hex); }

// RFC 4231, sections 4.2 to 4.8.
TEST(HmacSha256, GivesTheResultsOfRfc4231) {
  struct Case {
    std::string key, message, digest;
  };
  const Case cases[] = {
      {std::string(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {std::string(20, '\xaa'), std::string(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {Bytes("0102030405060708090a0b0c0d0e0f10111213141516171819"), std::string(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {std::string(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The key needs "
       "to "
       "be hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Case& c : cases) EXPECT_EQ(Hex(HmacSha256(c.key, c.message)), c.digest) << c.message;
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0c'), "Test With Truncation").substr(0, 16)),
            "a3b6167473100ee06e0c796c2955552b");
}

// RFC 5869, appendix A.1 to A.3.
TEST(HkdfSha256, GivesTheResultsOfRfc5869) {
  EXPECT_EQ(Hex(HkdfSha256(std::string(22, '\x0b'), Bytes("000102030405060708090a0b0c"),
                           Bytes("f0f1f2f3f4f5f6f7f8f9"), 42)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
  std::string secret, salt, info;
  for (int i = 0; i < 80; ++i) {
    secret += static_cast<char>(i);
    salt += static_cast<char>(0x60 + i);
    info += static_cast<char>(0xb0 + i);
  }
  EXPECT_EQ(
      Hex(HkdfSha256(secret, salt, info, 82)),
      "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09da3275"
      "600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87");
  EXPECT_EQ(Hex(HkdfSha256(std::string(22, '\x0b'), "", "", 42)),
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8");
}

TEST(HkdfSha256, DerivesAsManyBytesAsItCanAndNone) {
  EXPECT_EQ(HkdfSha256("secret", "", "info", kMaxHkdfBytes).size(), kMaxHkdfBytes);
  EXPECT_EQ(HkdfSha256("secret", "", "info", 0), "");
}

TEST(RandomBytes, DoNotRepeat) {
  std::set<std::string> drawn;
  for (int i = 0; i < 1000; ++i) {
    const std::string bytes = RandomBytes(16);
    EXPECT_EQ(bytes.size(), 16u);
    EXPECT_TRUE(drawn.insert(bytes).second);
  }
}

TEST(SecretsEqual, ComparesAllBytes) {
  const std::string secret = RandomBytes(32);
  EXPECT_TRUE(SecretsEqual(secret, secret));
  EXPECT_TRUE(SecretsEqual("", ""));
  EXPECT_FALSE(SecretsEqual(secret, ""));
  EXPECT_FALSE(SecretsEqual(secret, secret.substr(0, 31)));
  for (size_t at = 0; at < secret.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string other = secret;
      other[at] = static_cast<char>(other[at] ^ (1 << bit));
      EXPECT_FALSE(SecretsEqual(secret, other)) << "byte " << at << ", bit " << bit;
    }
  }
}

}  // namespace
}  // namespace tandem::crypto
