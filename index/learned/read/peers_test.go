package read

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/learned"
	"drtmx/internal/block"
	"drtmx/rdma/inproc"
)

const peerScan = 100

// peerKeys are the keys that results/indexes writes for drtmx and its peers.
type peerKeys struct {
	loaded   []uint64 // ascending
	inserted []uint64 // in random order
	early    []uint64 // GETs of loaded keys
	late     []uint64 // GETs of all keys
	starts   []uint64 // of scans; at least peerScan keys lie at or above each
}

func readPeerKeys(path string) (k peerKeys, err error) {
	f, err := os.Open(path)
	if err != nil {
		return k, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	for _, section := range []*[]uint64{&k.loaded, &k.inserted, &k.early, &k.late, &k.starts} {
		var n uint64
		if err := binary.Read(r, binary.LittleEndian, &n); err != nil {
			return k, err
		}
		raw := make([]byte, 8*n)
		if _, err := io.ReadFull(r, raw); err != nil {
			return k, err
		}
		*section = make([]uint64, n)
		for i := range *section {
			(*section)[i] = binary.LittleEndian.Uint64(raw[8*i:])
		}
	}
	return k, nil
}

// peerSide is a way to read the index, as one goroutine uses it. Values are keys plus
// one.
type peerSide struct {
	get  func(key uint64) (v uint64, ok bool)
	scan func(from uint64, values []uint64) []uint64 // nil if it cannot scan
}

// peerRun measures the sides of one index, and keeps figures by side and name.
type peerRun struct {
	*rig
	b      *testing.B
	keys   peerKeys
	sorted []uint64
	sides  map[string]func() peerSide
	got    map[string]map[string]float64
}

// BenchmarkPeers takes drtmx's figures for results/indexes, which compares them with
// those of other indexes: PEERS_KEYS is its file of keys. The names of the figures
// are those of its C++ programs.
func BenchmarkPeers(b *testing.B) {
	path := os.Getenv("PEERS_KEYS")
	if path == "" {
		b.Skip("no PEERS_KEYS")
	}
	keys, err := readPeerKeys(path)
	if err != nil {
		b.Fatal(err)
	}
	p := &peerRun{
		rig: newRig(b, learned.Options{RowWords: 1, Inline: learned.Yes}, Options{}, inproc.Options{}, false),
		b:   b, keys: keys, sorted: keys.loaded, got: map[string]map[string]float64{},
	}
	p.sides = map[string]func() peerSide{"server": p.server, "client": p.client, "model": p.model}
	p.insert("load::1", 1, keys.loaded)
	p.refreshAll("trainload::1", len(keys.loaded))
	p.read("loaded", keys.early)
	half := len(keys.inserted) / 2
	p.insert("insert::1", 1, keys.inserted[:half])
	p.insert("insert::2", 2, keys.inserted[half:])
	p.refreshAll("train::1", len(keys.inserted))
	p.sorted = slices.Concat(keys.loaded, keys.inserted)
	slices.Sort(p.sorted)
	st, q := p.s.Stats(), p.c.Stats()
	p.keep("server", "memory::1", float64(st.RowBytes+st.IndexBytes)/float64(len(p.sorted)))
	p.keep("client", "memory::1", float64(q.CacheBytes)/float64(len(p.sorted)))
	p.read("grown", keys.late)
	p.insertApart()
	for side, got := range p.got {
		b.Run(side, func(b *testing.B) {
			for what, v := range got {
				b.ReportMetric(v, what)
			}
		})
	}
}

func (p *peerRun) keep(side, what string, v float64) {
	if p.got[side] == nil {
		p.got[side] = map[string]float64{}
	}
	p.got[side][what] = v
}

// refreshAll trains all models and brings the client up to date. It keeps the time for
// a key.
func (p *peerRun) refreshAll(what string, n int) {
	start := time.Now()
	p.train()
	p.keep("server", what, float64(time.Since(start).Nanoseconds())/float64(n))
	p.refresh()
}

// timed runs n operations in some goroutines, each with a share, and keeps the time for
// an operation of all of them. It returns the sum of the answers.
func (p *peerRun) timed(side, what string, n, goroutines int, do func(s peerSide, from, to int) uint64) (sum uint64) {
	sides := make([]peerSide, goroutines)
	for i := range sides {
		sides[i] = p.sides[side]()
	}
	sums := make([]uint64, goroutines)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range goroutines {
		wg.Go(func() { sums[i] = do(sides[i], n*i/goroutines, n*(i+1)/goroutines) })
	}
	wg.Wait()
	p.keep(side, fmt.Sprintf("%s:%d", what, goroutines), float64(time.Since(start).Nanoseconds())/float64(n))
	for _, s := range sums {
		sum += s
	}
	return sum
}

// insert adds rows under the lock that a partition has.
func (p *peerRun) insert(what string, goroutines int, keys []uint64) {
	var mu sync.Mutex
	p.timed("server", what[:len(what)-2], len(keys), goroutines, func(_ peerSide, from, to int) uint64 {
		for _, k := range keys[from:to] {
			row := [1]uint64{k + 1}
			mu.Lock()
			err := p.s.Load(index.Num(k), row[:], block.Present(p.nextCSN()))
			mu.Unlock()
			if err != nil {
				p.b.Error(err)
				return 0
			}
		}
		return 0
	})
}

// insertApart measures inserts by two goroutines into two partitions, of which each
// goroutine has one. Half of the keys, by a hash, are those of a partition, and both have
// the rows that the one of the other measurements has before its two goroutines insert.
func (p *peerRun) insertApart() {
	parts := [2]*rig{}
	for i := range parts {
		parts[i] = newRig(p.b, learned.Options{RowWords: 1, Inline: learned.Yes}, Options{}, inproc.Options{}, false)
	}
	half := len(p.keys.inserted) / 2
	load := func(i int, keys []uint64) (n int) {
		g, mu := parts[i], sync.Mutex{}
		for _, k := range keys {
			if int(k*0x9e3779b97f4a7c15>>63) != i {
				continue
			}
			row := [1]uint64{k + 1}
			mu.Lock()
			err := g.s.Load(index.Num(k), row[:], block.Present(g.nextCSN()))
			mu.Unlock()
			if err != nil {
				p.b.Error(err)
				return n
			}
			n++
		}
		return n
	}
	for i := range parts {
		load(i, p.keys.loaded)
		load(i, p.keys.inserted[:half])
	}
	var n [2]int
	var wg sync.WaitGroup
	start := time.Now()
	for i := range parts {
		wg.Go(func() { n[i] = load(i, p.keys.inserted[half:]) })
	}
	wg.Wait()
	if n[0]+n[1] != len(p.keys.inserted)-half {
		p.b.Fatalf("%d and %d keys inserted, want %d", n[0], n[1], len(p.keys.inserted)-half)
	}
	p.keep("partitions", "insert::2", float64(time.Since(start).Nanoseconds())/float64(n[0]+n[1]))
}

// read measures GETs and scans of all sides, and checks their answers.
func (p *peerRun) read(state string, probes []uint64) {
	var want, wantScans uint64
	for _, k := range probes {
		want += k + 1
	}
	for _, from := range p.keys.starts {
		for _, k := range p.expected(from) {
			wantScans += k + 1
		}
	}
	for side, make := range p.sides {
		p.checkScans(side, make())
		for _, g := range []int{1, 2} {
			sum := p.timed(side, "get:"+state, len(probes), g, func(s peerSide, from, to int) (sum uint64) {
				for _, k := range probes[from:to] {
					v, ok := s.get(k)
					if !ok {
						p.b.Errorf("%s: key %d is missing", side, k)
						return 0
					}
					sum += v
				}
				return sum
			})
			if side != "model" && sum != want {
				p.b.Fatalf("%s: the values of GETs add up to %d, want %d", side, sum, want)
			}
			if make().scan == nil {
				continue
			}
			sum = p.timed(side, "scan:"+state, len(p.keys.starts), g, func(s peerSide, from, to int) (sum uint64) {
				var buf [peerScan]uint64
				for _, k := range p.keys.starts[from:to] {
					for _, v := range s.scan(k, buf[:0]) {
						sum += v
					}
				}
				return sum
			})
			if sum != wantScans {
				p.b.Fatalf("%s: the values of scans add up to %d, want %d", side, sum, wantScans)
			}
		}
	}
}

// expected are the keys of a scan.
func (p *peerRun) expected(from uint64) []uint64 {
	at, _ := slices.BinarySearch(p.sorted, from)
	return p.sorted[at : at+peerScan]
}

// checkScans checks each scan, row by row.
func (p *peerRun) checkScans(side string, s peerSide) {
	if s.scan == nil {
		return
	}
	var buf [peerScan]uint64
	for _, from := range p.keys.starts {
		got := s.scan(from, buf[:0])
		want := p.expected(from)
		for i := range got {
			got[i]--
		}
		if !slices.Equal(got, want) {
			p.b.Fatalf("%s: the scan from %d has wrong rows", side, from)
		}
	}
}

// server reads the tree in the server's memory.
func (p *peerRun) server() peerSide {
	var res index.GetResult
	var sr index.ScanResult
	var rows []uint64
	return peerSide{
		get: func(key uint64) (uint64, bool) {
			p.s.Lookup(index.Num(key), &res)
			if res.Status != index.Found {
				return 0, false
			}
			return res.Row[0], true
		},
		scan: func(from uint64, values []uint64) []uint64 {
			rows = p.s.Scan(index.Num(from), index.Num(^uint64(0)), peerScan, &sr, rows)
			return appendRows(values, &sr)
		},
	}
}

// client reads through the fabric, by one-sided READs, with all models in its cache.
func (p *peerRun) client() peerSide {
	d := driver{conn: p.dial()}
	get, scan := p.c.NewGet(), p.c.NewScan()
	return peerSide{
		get: func(key uint64) (uint64, bool) {
			get.Start(index.Num(key))
			d.run(get)
			r := get.Result()
			if r.Status != index.Found {
				return 0, false
			}
			return r.Row[0], true
		},
		scan: func(from uint64, values []uint64) []uint64 {
			scan.Start(index.Num(from), index.Num(^uint64(0)), peerScan)
			d.run(scan)
			return appendRows(values, scan.Result())
		},
	}
}

// model predicts the leaf of a key and translates it into an address, as a client does
// before it READs the leaf.
func (p *peerRun) model() peerSide {
	return peerSide{get: func(key uint64) (uint64, bool) {
		addr := predict(p.rig, p.c, key)
		return addr, addr != 0
	}}
}

func appendRows(values []uint64, r *index.ScanResult) []uint64 {
	for i := range r.Entries {
		values = append(values, r.Entries[i].Row[0])
	}
	return values
}
