// The Ed25519 key of one agent, what its signatures are checked with, and the incarnation that
// follows from it. The primitives are those of OpenSSL's libcrypto.
//
// Thread-safety: the functions are safe from any thread. A SigningKey may sign on several threads.

#ifndef KVXFER_CORE_BASE_SIGNING_KEY_H_
#define KVXFER_CORE_BASE_SIGNING_KEY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

struct evp_pkey_st;  // of OpenSSL

namespace kvxfer {

using PublicKey = std::array<uint8_t, 32>;
using Signature = std::array<uint8_t, 64>;

// Movable, not copyable: the private key is in one place, and is overwritten when that ends.
class SigningKey {
 public:
  // A new key. Unavailable: the kernel gives no secret bits.
  static absl::StatusOr<SigningKey> Generate();
  // The key that `seed`, the 32 bytes of RFC 8032, stands for.
  static absl::StatusOr<SigningKey> FromSeed(std::span<const uint8_t, 32> seed);

  const PublicKey& public_key() const { return public_key_; }
  // The same bytes for the same message. Takes some 50 µs.
  absl::StatusOr<Signature> Sign(std::string_view message) const;

 private:
  struct Free {
    void operator()(evp_pkey_st* key) const;
  };
  using Handle = std::unique_ptr<evp_pkey_st, Free>;

  static absl::StatusOr<SigningKey> Of(evp_pkey_st* key);
  SigningKey(Handle handle, const PublicKey& public_key)
      : handle_(std::move(handle)), public_key_(public_key) {}

  Handle handle_;
  PublicKey public_key_;
};

// Whether the owner of `key` signed `message`. False also where `key` is no key. Takes some 150 µs.
bool Verify(const PublicKey& key, std::string_view message, const Signature& signature);

// The first 128 bits of SHA-256 of the key.
absl::StatusOr<Incarnation> IncarnationOf(const PublicKey& key);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_SIGNING_KEY_H_
