package bench

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/pingcap/go-ycsb/pkg/prop"

	"drtmx/internal/rng"
	"drtmx/ycsb/props"
)

// counter hands out numbers.
type counter struct{ n atomic.Int64 }

func (c *counter) next() int64 { return c.n.Add(1) - 1 }

// frontier hands out the numbers of new records, and records up to which number all
// have been inserted: requests use only these records.
type frontier struct {
	counter
	limit atomic.Int64 // all records up to this number are inserted
	mu    struct {
		sync.Mutex
		done map[int64]struct{} // beyond limit+1
	}
}

func (f *frontier) start(n int64) {
	f.n.Store(n)
	f.limit.Store(n - 1)
	f.mu.done = map[int64]struct{}{}
}

func (f *frontier) last() int64 { return f.limit.Load() }

func (f *frontier) acknowledge(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.done[n] = struct{}{}
	limit := f.limit.Load()
	for {
		if _, ok := f.mu.done[limit+1]; !ok {
			break
		}
		limit++
		delete(f.mu.done, limit)
	}
	f.limit.Store(limit)
}

// chooser draws the number of a record. It belongs to one thread.
type chooser interface {
	draw(s *rng.Stream) int64
}

type chooserFunc func(s *rng.Stream) int64

func (f chooserFunc) draw(s *rng.Stream) int64 { return f(s) }

// latest favours the most recent records. Its Zipf may cover slightly fewer records
// than exist, so that not every insert makes each thread compute a new one. The
// newest record is always the most popular.
type latest struct {
	w    *Workload
	ages rng.Zipf
}

// latestSlack is the share of records by which the Zipf may lag behind.
const latestSlack = 1.0 / 1024

func (l *latest) draw(s *rng.Stream) int64 {
	last := l.w.inserted.last()
	if n := uint64(last + 1); float64(n) > float64(l.ages.Items())*(1+latestSlack) {
		l.ages.Grow(n)
	}
	return last - int64(l.ages.Draw(s))
}

// readDistribution reads the distribution of requests over records.
func (w *Workload) readDistribution(r *props.Reader) {
	lo, n := w.insertStart, uint64(w.insertCount)
	w.distribution = r.OneOf(prop.RequestDistribution, prop.RequestDistributionDefault,
		"uniform", "sequential", "zipfian", "latest", "hotspot", "exponential")
	switch w.distribution {
	case "sequential":
		var c counter
		w.newChooser = func() chooser {
			return chooserFunc(func(*rng.Stream) int64 { return lo + c.next()%int64(n) })
		}
	case "zipfian":
		w.newChooser = w.zipfian(r)
	case "latest":
		w.newChooser = func() chooser {
			z, _ := rng.NewZipf(uint64(w.records), rng.ThetaYCSB)
			return &latest{w, z}
		}
	case "hotspot":
		w.newChooser = w.hotspot(r)
	case "exponential":
		w.newChooser = w.exponential(r)
	default:
		w.newChooser = func() chooser {
			return chooserFunc(func(s *rng.Stream) int64 { return lo + int64(s.Uint64n(n)) })
		}
	}
}

// expectedMax bounds the records that a run is expected to insert, as a multiple of
// the existing ones: it is about how often a draw is repeated.
const expectedMax = 8

// zipfian draws from the existing records and those that a run is expected to insert,
// as YCSB does, so that popular records stay popular. It repeats draws of records
// that are not inserted yet.
func (w *Workload) zipfian(r *props.Reader) func() chooser {
	operations := r.Int(prop.OperationCount, 0, 0, props.Most)
	expected := min(int64(float64(operations)*w.weights[opInsert]*2), expectedMax*w.insertCount)
	return func() chooser {
		z, _ := rng.NewScrambledZipf(uint64(w.insertCount+expected), rng.ThetaYCSB)
		return chooserFunc(func(s *rng.Stream) int64 {
			for {
				if n := w.insertStart + int64(z.Draw(s)); n <= w.inserted.last() {
					return n
				}
			}
		})
	}
}

func (w *Workload) hotspot(r *props.Reader) func() chooser {
	data := r.Float(prop.HotspotDataFraction, prop.HotspotDataFractionDefault, 0, 1)
	requests := r.Float(prop.HotspotOpnFraction, prop.HotspotOpnFractionDefault, 0, 1)
	hot := uint64(float64(w.insertCount) * data)
	cold := uint64(w.insertCount) - hot
	return func() chooser {
		return chooserFunc(func(s *rng.Stream) int64 {
			if isHot := s.Bool(requests); cold == 0 || isHot && hot > 0 {
				return w.insertStart + int64(s.Uint64n(hot))
			}
			return w.insertStart + int64(hot+s.Uint64n(cold))
		})
	}
}

// exponential favours recent records: a share of requests falls on the last
// fraction of them.
func (w *Workload) exponential(r *props.Reader) func() chooser {
	percentile := r.Float(prop.ExponentialPercentile, prop.ExponentialPercentileDefault, 0.001, 99.999)
	fraction := r.Float(prop.ExponentialFrac, prop.ExponentialFracDefault, 1e-9, 1)
	gamma := -math.Log(1-percentile/100) / (float64(w.records) * fraction)
	return func() chooser {
		return chooserFunc(func(s *rng.Stream) int64 {
			for {
				if n := w.inserted.last() - int64(-math.Log(1-s.Float64())/gamma); n >= 0 {
					return n
				}
			}
		})
	}
}

// lengthHistogram draws the lengths of fields according to a YCSB histogram file: a
// line BlockSize<TAB>bytes, then lines block<TAB>count.
type lengthHistogram struct {
	block   int
	longest int
	upTo    []uint64 // cumulative counts by block
}

// histogramBlocksMax bounds a histogram file.
const histogramBlocksMax = 1 << 20

func readHistogram(path string) (*lengthHistogram, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := &lengthHistogram{}
	total, number := uint64(0), 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		number++
		words := strings.Fields(lines.Text())
		if len(words) == 0 {
			continue
		}
		if len(words) != 2 {
			return nil, fmt.Errorf("%s:%d: want BlockSize and bytes, or a block and its count", path, number)
		}
		v, err := strconv.ParseUint(words[1], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %q: want a whole number", path, number, words[1])
		}
		if h.block == 0 {
			if words[0] != "BlockSize" || v == 0 || v > fieldBytesMax {
				return nil, fmt.Errorf("%s:%d: want BlockSize and bytes first", path, number)
			}
			h.block = int(v)
			continue
		}
		at, err := strconv.Atoi(words[0])
		if err != nil || at < len(h.upTo) || at >= histogramBlocksMax {
			return nil, fmt.Errorf("%s:%d: %q: want a block number of at least %d", path, number, words[0], len(h.upTo))
		}
		for len(h.upTo) < at {
			h.upTo = append(h.upTo, total)
		}
		total += v
		h.upTo = append(h.upTo, total)
	}
	if h.longest = h.block * len(h.upTo); total == 0 || h.longest > fieldBytesMax {
		return nil, fmt.Errorf("%s: want counts of fields of at most %d bytes", path, fieldBytesMax)
	}
	return h, nil
}

func (h *lengthHistogram) draw(s *rng.Stream) int {
	n := s.Uint64n(h.upTo[len(h.upTo)-1])
	for i, upTo := range h.upTo {
		if n < upTo {
			return (i + 1) * h.block
		}
	}
	return h.longest
}
