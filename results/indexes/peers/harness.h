// Measures an index of a peer with the keys of a file, which results/indexes
// writes, and prints the figures in the format of Go's benchmarks:
//
//   peer KEYS    prints BenchmarkPeer/NAME 1 <value> <what>:<state>:<threads> ...
//
// A peer is a class with these members. Values are keys plus one.
//
//   static constexpr const char* name;
//   static constexpr int threads;             // that may use it at the same time
//   void load(const std::vector<uint64_t>& keys);       // ascending
//   void enter(int thread), leave(int thread); // around the operations of a thread
//   bool get(int thread, uint64_t key, uint64_t& value);
//   bool insert(int thread, uint64_t key, uint64_t value);
//   size_t scan(int thread, uint64_t from, size_t n, uint64_t* values);
//   void settle();                            // lets background work finish
//
// A scan must answer with the values of the first n keys from `from` on. All
// answers are added up, and the sums must be right.
#pragma once

#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace harness {

constexpr size_t kScan = 100;

[[noreturn]] inline void fail(const std::string& why) {
  fprintf(stderr, "%s\n", why.c_str());
  _exit(1);
}

// Keys are the sections of the file: each is a count and so many keys.
struct Keys {
  std::vector<uint64_t> loaded;   // in ascending order
  std::vector<uint64_t> inserted; // in random order
  std::vector<uint64_t> early;    // GETs of loaded keys
  std::vector<uint64_t> late;     // GETs of all keys
  std::vector<uint64_t> starts;   // of scans; at least kScan keys lie at or above each

  explicit Keys(const char* path) {
    FILE* f = fopen(path, "rb");
    if (f == nullptr) fail(std::string("cannot open ") + path);
    for (auto* section : {&loaded, &inserted, &early, &late, &starts}) {
      uint64_t n;
      if (fread(&n, sizeof n, 1, f) != 1) fail("the file of keys is too short");
      section->resize(n);
      if (fread(section->data(), sizeof(uint64_t), n, f) != n) fail("the file of keys is too short");
    }
    fclose(f);
  }
};

// allocated returns the bytes that malloc has given out, with its own headers.
inline double allocated() {
  const struct mallinfo2 m = mallinfo2();
  return double(m.uordblks) + double(m.hblkhd);
}

template <class Peer>
class Bench {
 public:
  explicit Bench(const char* path) : keys_(path) {}

  void run() {
    const double before = allocated();
    peer_ = new Peer();
    timed("load::1", keys_.loaded.size(), 1, [&](int, size_t, size_t) {
      peer_->load(keys_.loaded);
      return uint64_t(0);
    });
    sorted_ = keys_.loaded;
    gets("loaded", keys_.early);
    scans("loaded");
    const size_t half = Peer::threads > 1 ? keys_.inserted.size() / 2 : keys_.inserted.size();
    inserts(1, 0, half);
    if (Peer::threads > 1) inserts(2, half, keys_.inserted.size());
    sorted_.insert(sorted_.end(), keys_.inserted.begin(), keys_.inserted.end());
    std::sort(sorted_.begin(), sorted_.end());
    const size_t n = sorted_.size(), held = sorted_.capacity() * sizeof(uint64_t);
    peer_->settle();
    figure((allocated() - before - double(held)) / double(n), "memory::1");
    gets("grown", keys_.late);
    scans("grown");
    print();
  }

 private:
  // timed runs a function in some threads, each with a share of n operations, and
  // keeps the time for an operation of all of them. It returns the sum of the answers.
  template <class F>
  uint64_t timed(const std::string& what, size_t n, int threads, F f) {
    std::atomic<int> ready{0};
    std::atomic<bool> go{false};
    std::vector<uint64_t> sums(threads * 8);
    std::vector<std::thread> running;
    auto share = [&](int t) {
      peer_->enter(t);
      ready++;
      while (!go.load()) std::this_thread::yield();
      sums[t * 8] = f(t, n * t / threads, n * (t + 1) / threads);
      peer_->leave(t);
    };
    for (int t = 0; t < threads; t++) running.emplace_back(share, t);
    while (ready.load() < threads) std::this_thread::yield();
    const auto start = std::chrono::steady_clock::now();
    go.store(true);
    for (auto& r : running) r.join();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    figure(took.count() / double(n), what);
    uint64_t sum = 0;
    for (uint64_t s : sums) sum += s;
    return sum;
  }

  void gets(const std::string& state, const std::vector<uint64_t>& probes) {
    uint64_t want = 0;
    for (uint64_t k : probes) want += k + 1;
    for (int threads = 1; threads <= std::min(2, Peer::threads); threads++) {
      const uint64_t sum = timed("get:" + state + ":" + std::to_string(threads), probes.size(), threads,
                                 [&](int t, size_t from, size_t to) {
                                   uint64_t sum = 0;
                                   for (size_t i = from; i < to; i++) {
                                     uint64_t v = 0;
                                     if (!peer_->get(t, probes[i], v)) fail(std::string(Peer::name) + ", " + state + ": a key is missing");
                                     sum += v;
                                   }
                                   return sum;
                                 });
      if (sum != want) fail(std::string(Peer::name) + ", " + state + ": wrong values");
    }
  }

  // scans also counts the scans whose answer is wrong, without timing them.
  void scans(const std::string& state) {
    size_t wrong = 0;
    uint64_t values[kScan];
    peer_->enter(0);
    for (uint64_t from : keys_.starts) {
      std::fill(values, values + kScan, 0);
      bool good = peer_->scan(0, from, kScan, values) == kScan;
      const size_t at = std::lower_bound(sorted_.begin(), sorted_.end(), from) - sorted_.begin();
      for (size_t i = 0; good && i < kScan; i++) good = values[i] == sorted_[at + i] + 1;
      wrong += !good;
    }
    peer_->leave(0);
    figure(100 * double(wrong) / double(keys_.starts.size()), "wrong:" + state + ":1");
    for (int threads = 1; threads <= std::min(2, Peer::threads); threads++) {
      const uint64_t sum = timed("scan:" + state + ":" + std::to_string(threads), keys_.starts.size(), threads,
                                 [&](int t, size_t from, size_t to) {
                                   uint64_t sum = 0, values[kScan];
                                   for (size_t i = from; i < to; i++) {
                                     const size_t n = peer_->scan(t, keys_.starts[i], kScan, values);
                                     for (size_t j = 0; j < n; j++) sum += values[j];
                                   }
                                   return sum;
                                 });
      if (wrong == 0 && sum != scanned()) fail(std::string(Peer::name) + ", " + state + ": wrong sums of scans");
    }
  }

  // scanned returns the sum of the answers that all scans should have.
  uint64_t scanned() const {
    uint64_t sum = 0;
    for (uint64_t from : keys_.starts) {
      const size_t at = std::lower_bound(sorted_.begin(), sorted_.end(), from) - sorted_.begin();
      for (size_t i = 0; i < kScan; i++) sum += sorted_[at + i] + 1;
    }
    return sum;
  }

  void inserts(int threads, size_t from, size_t to) {
    timed("insert::" + std::to_string(threads), to - from, threads, [&](int t, size_t a, size_t b) {
      for (size_t i = from + a; i < from + b; i++) {
        const uint64_t k = keys_.inserted[i];
        if (!peer_->insert(t, k, k + 1)) fail(std::string(Peer::name) + ": an insert by " + std::to_string(threads) + " threads failed");
      }
      return uint64_t(0);
    });
  }

  void figure(double value, const std::string& what) {
    char text[64];
    snprintf(text, sizeof text, " %.3f ", value);
    line_ += text + what;
  }

  void print() const { printf("\nBenchmarkPeer/%s 1%s\n", Peer::name, line_.c_str()); }

  Keys keys_;
  std::vector<uint64_t> sorted_;
  Peer* peer_ = nullptr;
  std::string line_;
};

template <class Peer>
int main(int argc, char** argv) {
  if (argc != 2) fail("want one argument, the file of keys");
  Bench<Peer>(argv[1]).run();
  fflush(stdout);
  _exit(0); // without destructors, which may wait for threads of the peer
}

} // namespace harness
