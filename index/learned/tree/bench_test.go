package tree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"

	gbtree "github.com/google/btree"
	tbtree "github.com/tidwall/btree"
)

const benchSeed = 20201104

// benchKeys is the number of rows; TREE_KEYS changes it.
func benchKeys(b *testing.B) int {
	b.Helper()
	if v := os.Getenv("TREE_KEYS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	return 1_000_000
}

type benchRow struct {
	key uint64
	row [1]uint64
}

func lessRow(a, b benchRow) bool { return a.key < b.key }

// store is a tree under its usual lock.
type store interface {
	insert(key, v uint64)
	get(key uint64) (uint64, bool)
	scan(lo uint64, limit int, fn func(k, v uint64))
}

type xStore struct {
	mu  sync.Mutex
	t   *Tree
	csn uint64
}

func (s *xStore) insert(key, v uint64) {
	row := [1]uint64{v}
	s.mu.Lock()
	s.csn++
	if err := s.t.Load(index.Num(key), row[:], block.Present(block.NewCSN(1, s.csn))); err != nil {
		panic(err)
	}
	s.mu.Unlock()
}

type xReader struct {
	*xStore
	res index.GetResult
	sr  index.ScanResult
	buf []uint64
}

func (s *xReader) get(key uint64) (uint64, bool) {
	s.t.Lookup(index.Num(key), &s.res)
	if s.res.Status != index.Found {
		return 0, false
	}
	return s.res.Row[0], true
}

func (s *xReader) scan(lo uint64, limit int, fn func(k, v uint64)) {
	s.buf = s.t.Scan(index.Num(lo), index.Num(^uint64(0)), limit, &s.sr, s.buf)
	for i := range s.sr.Entries {
		fn(s.sr.Entries[i].Key.Num, s.sr.Entries[i].Row[0])
	}
}

// tStore is tidwall's tree, which locks for itself, reading shared.
type tStore struct{ t *tbtree.BTreeG[benchRow] }

func (s *tStore) insert(key, v uint64) { s.t.Set(benchRow{key, [1]uint64{v}}) }
func (s *tStore) get(key uint64) (uint64, bool) {
	r, ok := s.t.Get(benchRow{key: key})
	return r.row[0], ok
}

func (s *tStore) scan(lo uint64, limit int, fn func(k, v uint64)) {
	s.t.Ascend(benchRow{key: lo}, func(r benchRow) bool {
		fn(r.key, r.row[0])
		limit--
		return limit > 0
	})
}

// gStore is google's tree under a RWMutex.
type gStore struct {
	mu sync.RWMutex
	t  *gbtree.BTreeG[benchRow]
}

func (s *gStore) insert(key, v uint64) {
	s.mu.Lock()
	s.t.ReplaceOrInsert(benchRow{key, [1]uint64{v}})
	s.mu.Unlock()
}

func (s *gStore) get(key uint64) (uint64, bool) {
	s.mu.RLock()
	r, ok := s.t.Get(benchRow{key: key})
	s.mu.RUnlock()
	return r.row[0], ok
}

func (s *gStore) scan(lo uint64, limit int, fn func(k, v uint64)) {
	s.mu.RLock()
	s.t.AscendGreaterOrEqual(benchRow{key: lo}, func(r benchRow) bool {
		fn(r.key, r.row[0])
		limit--
		return limit > 0
	})
	s.mu.RUnlock()
}

func newStore(b *testing.B, name string) store {
	switch name {
	case "tidwall":
		return &tStore{tbtree.NewBTreeG(lessRow)}
	case "google":
		return &gStore{t: gbtree.NewG(32, lessRow)}
	}
	r, err := mem.New(mem.Options{})
	if err != nil {
		b.Fatal(err)
	}
	lay, err := leaf.NewLayout(7, leaf.Inline, 1, leaf.AutoSlots(leaf.Inline, 1))
	if err != nil {
		b.Fatal(err)
	}
	t, err := New(block.NewArena(r, block.ArenaOptions{Tick: 1}), Options{Layout: lay})
	if err != nil {
		b.Fatal(err)
	}
	return &xStore{t: t}
}

// reader is the store as one goroutine sees it.
func reader(s store) store {
	if x, ok := s.(*xStore); ok {
		return &xReader{xStore: x}
	}
	return s
}

func (s *xStore) get(uint64) (uint64, bool)           { panic("use reader") }
func (s *xStore) scan(uint64, int, func(k, v uint64)) { panic("use reader") }

var benchStores = []string{"tree", "tidwall", "google"}

// BenchmarkServer times point lookups, scans of 100 rows and inserts of random
// keys on the server's tree and its rivals, by 1 and by 2 goroutines; ns/op is
// per operation of all goroutines together. get8 and insert8 prefetch eight keys
// at a time, as a transaction of several rows does.
func BenchmarkServer(b *testing.B) {
	n := benchKeys(b)
	r := rand.New(rand.NewPCG(benchSeed, 1))
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = r.Uint64()
	}
	extra := make([]uint64, n)
	for i := range extra {
		extra[i] = r.Uint64()
	}
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	for _, name := range benchStores {
		s := newStore(b, name)
		for _, k := range keys {
			s.insert(k, k+1)
		}
		for _, g := range []int{1, 2} {
			b.Run(fmt.Sprintf("get/%s/goroutines=%d", name, g), func(b *testing.B) {
				spread(b, g, func(b *testing.B, from, count int) {
					s := reader(s)
					for i := range count {
						k := keys[(from+i*7919)%n]
						if v, ok := s.get(k); !ok || v != k+1 {
							b.Errorf("key %d: %d %v", k, v, ok)
							return
						}
					}
				})
			})
			if name == "tree" {
				b.Run(fmt.Sprintf("get8/%s/goroutines=%d", name, g), func(b *testing.B) {
					spread(b, g, func(b *testing.B, from, count int) {
						s := &xReader{xStore: s.(*xStore)}
						for i := 0; i < count; i += 8 {
							var near [8]uint64 // the reads of a transaction, prefetched together
							for j := range near {
								near[j] = keys[(from+(i+j)*7919)%n]
								s.t.Prefetch(index.Num(near[j]), 0)
							}
							for _, k := range near {
								if v, ok := s.get(k); !ok || v != k+1 {
									b.Errorf("key %d: %d %v", k, v, ok)
									return
								}
							}
						}
					})
				})
			}
			b.Run(fmt.Sprintf("scan100/%s/goroutines=%d", name, g), func(b *testing.B) {
				spread(b, g, func(b *testing.B, from, count int) {
					s := reader(s)
					for i := range count {
						sum, rows := uint64(0), 0
						s.scan(keys[(from+i*7919)%n], 100, func(k, v uint64) { sum, rows = sum+v, rows+1 })
						if rows == 0 {
							b.Error("empty scan")
							return
						}
					}
				})
			})
		}
	}
	for _, name := range benchStores {
		for _, g := range []int{1, 2} {
			b.Run(fmt.Sprintf("insert/%s/goroutines=%d", name, g), func(b *testing.B) {
				s := newStore(b, name)
				for _, k := range keys {
					s.insert(k, k+1)
				}
				spread(b, g, func(b *testing.B, from, count int) {
					for i := range count {
						k := extra[(from+i)%n] + uint64((from+i)/n)
						s.insert(k, k+1)
					}
				})
			})
			if name == "tree" {
				b.Run(fmt.Sprintf("insert8/%s/goroutines=%d", name, g), func(b *testing.B) {
					s := newStore(b, name).(*xStore)
					for _, k := range keys {
						s.insert(k, k+1)
					}
					spread(b, g, func(_ *testing.B, from, count int) {
						for i := 0; i < count; i += 8 {
							var near [8]uint64 // the rows of a commit, prefetched before it takes the lock
							for j := range near {
								near[j] = extra[(from+i+j)%n] + uint64((from+i+j)/n)
								s.t.Prefetch(index.Num(near[j]), 0)
							}
							for _, k := range near {
								s.insert(k, k+1)
							}
						}
					})
				})
			}
			b.Run(fmt.Sprintf("append/%s/goroutines=%d", name, g), func(b *testing.B) {
				s := newStore(b, name)
				spread(b, g, func(b *testing.B, from, count int) {
					for i := range count {
						s.insert(uint64(from+i), 1)
					}
				})
			})
		}
	}
}

// spread runs b.N operations on g goroutines.
func spread(b *testing.B, g int, do func(b *testing.B, from, count int)) {
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range g {
		from, to := b.N*i/g, b.N*(i+1)/g
		wg.Add(1)
		go func() {
			defer wg.Done()
			do(b, from, to-from)
		}()
	}
	wg.Wait()
}
