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

// Takes libcrypto's errors of this thread, so that nobody else meets them.
absl::Status Failed(const char* what) {
  std::array<char, 256> why{};
  const auto code = ERR_get_error();
  if (code != 0) ERR_error_string_n(code, why.data(), why.size());
  ERR_clear_error();
  return absl::InternalError(
      absl::StrCat("libcrypto could not ", what, ": ", code != 0 ? why.data() : "no cause given"));
}

// Threads of an agent may still work when exit() would free what libcrypto keeps.
void KeepUntilTheEnd() { OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr); }

const uint8_t* Bytes(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
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
  KeepUntilTheEnd();
  struct FreeKey {
    void operator()(EVP_PKEY* pkey) const { EVP_PKEY_free(pkey); }
  };
  const std::unique_ptr<EVP_PKEY, FreeKey> handle(
      EVP_PKEY_new_raw_public_key_ex(nullptr, "ED25519", nullptr, key.data(), key.size()));
  const DigestContext context(EVP_MD_CTX_new());
  const bool good =
      handle != nullptr && context != nullptr &&
      EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, handle.get()) == 1 &&
      EVP_DigestVerify(context.get(), signature.data(), signature.size(), Bytes(message),
                       message.size()) == 1;
  if (!good) ERR_clear_error();
  return good;
}

absl::StatusOr<Incarnation> IncarnationOf(const PublicKey& key) {
  KeepUntilTheEnd();
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
