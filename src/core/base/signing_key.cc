#include "src/core/base/signing_key.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/random.h"

namespace kvxfer {
namespace {

struct FreeDigest {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using DigestContext = std::unique_ptr<EVP_MD_CTX, FreeDigest>;

// Takes the errors that libcrypto has noted since it was made, and no others: the thread may be the
// application's, which has errors of its own there.
class OwnErrors {
 public:
  OwnErrors() { ERR_set_mark(); }
  ~OwnErrors() { ERR_pop_to_mark(); }
  OwnErrors(const OwnErrors&) = delete;
  OwnErrors& operator=(const OwnErrors&) = delete;
};

absl::Status Failed(const char* what) {
  std::array<char, 256> why{};
  const auto code = ERR_peek_last_error();
  if (code != 0) ERR_error_string_n(code, why.data(), why.size());
  return absl::InternalError(
      absl::StrCat("libcrypto could not ", what, ": ", code != 0 ? why.data() : "no cause given"));
}

// Threads of an agent may still work when exit() would free what libcrypto keeps.
void KeepUntilTheEnd() { OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr); }

const uint8_t* Bytes(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// The y coordinates of the points whose order divides 8, and p and p + 1, which stand for 0 and 1;
// little-endian, without the sign of x. With such a key signatures verify that nobody made, for one
// message in eight or more. (RFC 8032, 5.1, has the curve.)
constexpr std::array<PublicKey, 7> kSmallOrder = {{
    {0x00},
    {0x01},
    {0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4,
     0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6,
     0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05},
    {0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b,
     0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39,
     0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a},
    {0xec, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
    {0xed, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
    {0xee, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
     0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f},
}};

bool HasSmallOrder(PublicKey key) {
  key.back() &= 0x7f;
  return std::ranges::find(kSmallOrder, key) != kSmallOrder.end();
}

}  // namespace

void SigningKey::Free::operator()(evp_pkey_st* key) const { EVP_PKEY_free(key); }

absl::StatusOr<SigningKey> SigningKey::Generate() {
  std::array<uint8_t, 32> seed{};
  if (!FillSecret(seed)) {
    return absl::UnavailableError(
        "no key can be made: the kernel gives no random bits, neither by getrandom nor from "
        "/dev/urandom; allow one of them in this sandbox");
  }
  auto key = FromSeed(seed);
  OPENSSL_cleanse(seed.data(), seed.size());
  return key;
}

absl::StatusOr<SigningKey> SigningKey::FromSeed(std::span<const uint8_t, 32> seed) {
  KeepUntilTheEnd();
  const OwnErrors errors;
  return Of(EVP_PKEY_new_raw_private_key_ex(nullptr, "ED25519", nullptr, seed.data(), seed.size()));
}

absl::StatusOr<SigningKey> SigningKey::Of(evp_pkey_st* key) {
  Handle handle(key);
  PublicKey public_key{};
  size_t size = public_key.size();
  if (handle == nullptr ||
      EVP_PKEY_get_raw_public_key(handle.get(), public_key.data(), &size) != 1 ||
      size != public_key.size()) {
    return Failed("make an Ed25519 key");
  }
  return SigningKey(std::move(handle), public_key);
}

absl::StatusOr<Signature> SigningKey::Sign(std::string_view message) const {
  const OwnErrors errors;
  Signature signature{};
  size_t size = signature.size();
  const DigestContext context(EVP_MD_CTX_new());
  if (context == nullptr ||
      EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, handle_.get()) != 1 ||
      EVP_DigestSign(context.get(), signature.data(), &size, Bytes(message), message.size()) != 1 ||
      size != signature.size()) {
    return Failed("sign");
  }
  return signature;
}

bool Verify(const PublicKey& key, std::string_view message, const Signature& signature) {
  if (HasSmallOrder(key)) return false;
  KeepUntilTheEnd();
  const OwnErrors errors;
  struct FreeKey {
    void operator()(EVP_PKEY* pkey) const { EVP_PKEY_free(pkey); }
  };
  const std::unique_ptr<EVP_PKEY, FreeKey> handle(
      EVP_PKEY_new_raw_public_key_ex(nullptr, "ED25519", nullptr, key.data(), key.size()));
  const DigestContext context(EVP_MD_CTX_new());
  return handle != nullptr && context != nullptr &&
         EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, handle.get()) == 1 &&
         EVP_DigestVerify(context.get(), signature.data(), signature.size(), Bytes(message),
                          message.size()) == 1;
}

absl::StatusOr<Incarnation> IncarnationOf(const PublicKey& key) {
  KeepUntilTheEnd();
  const OwnErrors errors;
  std::array<uint8_t, 32> digest{};
  size_t size = digest.size();
  if (EVP_Q_digest(nullptr, "SHA256", nullptr, key.data(), key.size(), digest.data(), &size) != 1) {
    return Failed("hash a public key");
  }
  Incarnation incarnation;
  std::copy_n(digest.begin(), incarnation.bytes.size(), incarnation.bytes.begin());
  return incarnation;
}

}  // namespace kvxfer
