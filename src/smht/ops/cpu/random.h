// Which attention weights are dropped: counter-based random numbers (Philox 4x32-10, Salmon et al. 2011, "Parallel
// random numbers: as easy as 1, 2, 3"), a function of seed, sequence and head, query and key, so that neither threads
// nor tiles change them and backward draws them again.
#pragma once

#include <array>
#include <cstdint>

namespace smht {

constexpr int64_t kKeysDrawn = 64;  // one draw: 16 counters, four numbers each

// Numbers of the keys 64·block to 64·block + 63. Words of 32 bits are kept in 64, as compilers then see that a product
// of two is one instruction, and turn the loops over 16 counters into vector code.
inline void draw(uint64_t seed, uint64_t row, uint32_t block, std::array<uint32_t, kKeysDrawn>& numbers) {
  constexpr uint64_t kWord = 0xffffffff;
  uint64_t c0[16], c1[16], c2[16], c3[16];
  for (uint64_t i = 0; i < 16; ++i) {
    c0[i] = (uint64_t{block} * 16 + i) & kWord;
    c1[i] = 0;
    c2[i] = row & kWord;
    c3[i] = row >> 32;
  }
  uint64_t key0 = seed & kWord, key1 = seed >> 32;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 16; ++i) {
      const uint64_t first = uint64_t{0xD2511F53} * (c0[i] & kWord), second = uint64_t{0xCD9E8D57} * (c2[i] & kWord);
      c0[i] = (second >> 32) ^ c1[i] ^ key0;
      c1[i] = second & kWord;
      c2[i] = (first >> 32) ^ c3[i] ^ key1;
      c3[i] = first & kWord;
    }
    key0 = (key0 + 0x9E3779B9) & kWord;
    key1 = (key1 + 0xBB67AE85) & kWord;
  }
  for (int i = 0; i < 16; ++i) {
    numbers[i] = static_cast<uint32_t>(c0[i]);
    numbers[16 + i] = static_cast<uint32_t>(c1[i]);
    numbers[32 + i] = static_cast<uint32_t>(c2[i]);
    numbers[48 + i] = static_cast<uint32_t>(c3[i]);
  }
}

// Dropout with a given probability and seed; without a seed nothing is dropped.
struct Dropout {
  bool active = false;
  uint64_t seed = 0;
  uint32_t threshold = 0;  // numbers below are dropped
  float kept = 1;          // what is kept is multiplied by this

  Dropout(double probability, const int64_t* given_seed) {
    if (!given_seed || probability <= 0) return;
    active = true;
    seed = static_cast<uint64_t>(*given_seed);
    threshold = static_cast<uint32_t>(probability * 4294967296.0);
    kept = static_cast<float>(1 / (1 - probability));
  }

  // Factor of each of `count` keys from `first`, a multiple of 64, on: 0 or 1 / (1 - probability).
  void factors(uint64_t row, int64_t first, int64_t count, float* result) const {
    std::array<uint32_t, kKeysDrawn> numbers;
    for (int64_t s = 0; s < count; s += kKeysDrawn) {
      draw(seed, row, static_cast<uint32_t>((first + s) / kKeysDrawn), numbers);
      for (int64_t j = 0; j < kKeysDrawn; ++j) result[s + j] = numbers[j] < threshold ? 0.f : kept;
    }
  }
};

}  // namespace smht
