package model

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"drtmx/internal/keysets"
)

const benchSeed = 20240611

// benchKeys is the size of the measured sets; XMODEL_KEYS changes it.
func benchKeys(b *testing.B) int {
	b.Helper()
	if v := os.Getenv("XMODEL_KEYS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	return 10_000_000
}

func benchLeaves(b *testing.B, dist string) (leafSet, []uint64) {
	b.Helper()
	r := rand.New(rand.NewPCG(benchSeed, 1))
	for _, d := range keysets.All {
		if d.Name == dist {
			keys := d.Draw(r, benchKeys(b))
			return fillLeaves(r, keys), keys
		}
	}
	b.Fatalf("no distribution %q", dist)
	return leafSet{}, nil
}

const innerBytesPerLeaf = 24

// BenchmarkModel trains each family on each distribution, reports what the
// model is worth, and times lookups of random present keys.
func BenchmarkModel(b *testing.B) {
	for _, d := range keysets.All {
		b.Run(d.Name, func(b *testing.B) {
			l, keys := benchLeaves(b, d.Name)
			for _, f := range []Family{RMI, PLR} {
				for _, target := range []int{256, 512} {
					b.Run(f.String()+"/leaves="+strconv.Itoa(target), func(b *testing.B) {
						m, _, err := build(Options{Family: f}, l, target)
						if err != nil {
							b.Fatal(err)
						}
						benchLookup(b, m, keys)
						reportWorth(b, m, l) // after Loop, which clears metrics
					})
				}
			}
		})
	}
}

// reportWorth looks up every present key.
func reportWorth(b *testing.B, m *Model, l leafSet) {
	var n, wrong, sum, worst, wide, guessWrong, guessSum, span int
	base, sub := 0, 0
	var bare SubModel
	var bareOf *SubModel
	for i, keys := range l.keys {
		for _, k := range keys {
			p := m.Lookup(k)
			if p.SubModel != sub {
				base += m.SubModel(sub).Leaves()
				sub = p.SubModel
			}
			e := p.Leaf + base - i
			n++
			if e != 0 {
				wrong++
				sum += max(e, -e)
				worst = max(worst, e, -e)
			}
			if p.Lo+base > i || p.Hi+base < i {
				b.Fatalf("key %d is in leaf %d, not in [%d, %d]", k, i, p.Lo+base, p.Hi+base)
			}
			wide += p.Hi - p.Lo
			if bareOf != m.SubModel(sub) {
				bareOf, bare = m.SubModel(sub), *m.SubModel(sub)
				bare.DropTT()
			}
			p = bare.Predict(k)
			e = p.Leaf + base - i
			if e != 0 {
				guessWrong++
			}
			guessSum += max(e, -e)
			span += p.Hi - p.Lo + 1
		}
	}
	z := m.Size()
	inner := float64(z.Leaves * innerBytesPerLeaf)
	b.ReportMetric(100*float64(n-wrong)/float64(n), "first-leaf-%")
	b.ReportMetric(float64(sum)/float64(n), "mean-err")
	b.ReportMetric(float64(worst), "max-err")
	b.ReportMetric(1+float64(wide)/float64(n), "bound-leaves")
	b.ReportMetric(100*float64(n-guessWrong)/float64(n), "noTT-first-%")
	b.ReportMetric(float64(guessSum)/float64(n), "noTT-mean-err")
	b.ReportMetric(float64(span)/float64(n), "noTT-bound")
	b.ReportMetric(100*float64(z.RouterBytes+z.ModelBytes)/inner, "models-%")
	b.ReportMetric(100*float64(z.TTBytes)/inner, "TT-%")
	b.ReportMetric(float64(z.SubModels), "submodels")
	segs := 0
	for i := range m.Len() {
		segs += m.SubModel(i).Segments()
	}
	b.ReportMetric(float64(segs), "segments")
}

var sink int

// probes draws the keys to look up in advance: the cost of drawing is not the
// model's.
func probes(keys []uint64) []uint64 {
	r := rand.New(rand.NewPCG(benchSeed, 2))
	p := make([]uint64, 1<<16)
	for i := range p {
		p[i] = keys[r.IntN(len(keys))]
	}
	return p
}

func benchLookup(b *testing.B, m *Model, keys []uint64) {
	p := probes(keys)
	i, got := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		q := m.Lookup(p[i&(len(p)-1)])
		got += q.Leaf + int(q.ALN)
		i++
	}
	sink += got
}

func BenchmarkRoute(b *testing.B) {
	for _, d := range keysets.All {
		b.Run(d.Name, func(b *testing.B) {
			l, keys := benchLeaves(b, d.Name)
			r, err := NewRouter(Partition(l.fences, 512))
			if err != nil {
				b.Fatal(err)
			}
			p := probes(keys)
			i, got := 0, 0
			for b.Loop() {
				got += r.Route(p[i&(len(p)-1)])
				i++
			}
			sink += got
			b.ReportMetric(float64(r.Bytes())/float64(r.Len()), "B/submodel")
		})
	}
}

// BenchmarkTrain trains all sub-models of a set; ns/key is what counts.
func BenchmarkTrain(b *testing.B) {
	for _, d := range keysets.All {
		b.Run(d.Name, func(b *testing.B) {
			l, keys := benchLeaves(b, d.Name)
			for _, f := range []Family{RMI, PLR} {
				b.Run(f.String(), func(b *testing.B) {
					t, err := NewTrainer(Options{Family: f})
					if err != nil {
						b.Fatal(err)
					}
					var s SubModel
					for b.Loop() {
						r, err := NewRouter(Partition(l.fences, 512))
						if err != nil {
							b.Fatal(err)
						}
						at := 0
						for i := range r.Len() {
							at = addLeaves(t, r, i, l, at)
							if _, err := t.Train(&s, 1); err != nil {
								b.Fatal(err)
							}
						}
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(keys)), "ns/key")
				})
			}
		})
	}
}

// BenchmarkErrorBound counts the lines that a bound of their errors takes: no tighter bound is
// tried, and as many lines are allowed as there are leaves.
func BenchmarkErrorBound(b *testing.B) {
	for _, d := range keysets.All {
		l, _ := benchLeaves(b, d.Name)
		for _, leaves := range []int{1, 4, 16, 64} {
			b.Run(fmt.Sprintf("%s/leaves=%d", d.Name, leaves), func(b *testing.B) {
				var m *Model
				var err error
				for b.Loop() {
					if m, _, err = build(Options{Family: PLR, ErrorLeaves: leaves, WrongShare: 1, LeavesPerSegment: 1}, l, 512); err != nil {
						b.Fatal(err)
					}
				}
				lines := 0
				for i := range m.Len() {
					lines += m.SubModel(i).Segments()
				}
				b.ReportMetric(float64(lines), "lines")
			})
		}
	}
}

// BenchmarkTTAfterSplits reports what the TT costs when a share of the leaves
// was split off after a bulk load in key order and so has numbers from the end
// of the leaf region, in random order; and, as "local", when a new leaf comes
// from its neighbourhood's own run of numbers instead.
func BenchmarkTTAfterSplits(b *testing.B) {
	r := rand.New(rand.NewPCG(benchSeed, 4))
	l := fillLeaves(r, keysets.Uniform(r, benchKeys(b)))
	for _, share := range []float64{0, 0.01, 0.05, 0.2, 0.5, 1} {
		for _, local := range []bool{false, true} {
			splitNumbers(r, l.alns, share, local)
			name := "split=" + strconv.FormatFloat(share, 'g', -1, 64)
			if local {
				name += "/local"
			}
			b.Run(name, func(b *testing.B) {
				var m *Model
				for b.Loop() {
					var err error
					if m, _, err = build(Options{}, l, 512); err != nil {
						b.Fatal(err)
					}
				}
				z := m.Size()
				inner := float64(z.Leaves * innerBytesPerLeaf)
				b.ReportMetric(100*float64(z.TTBytes)/inner, "TT-%")
				aln := 0
				for i := range m.Len() {
					s := m.SubModel(i)
					aln += 8*s.TTBytes() - s.Leaves()*int(s.corrBits) // what of the TT is not corrections
				}
				b.ReportMetric(float64(aln)/float64(z.Leaves), "ALN-bits")
			})
		}
	}
}

// splitNumbers renumbers leaves: those not split off in key order, the others
// from a shuffled pool, the whole region's or one of 64 leaves for 64 leaves.
func splitNumbers(r *rand.Rand, alns []uint32, share float64, local bool) {
	pool := len(alns)
	if local {
		pool = 64
	}
	for from := 0; from < len(alns); from += pool {
		part := alns[from:min(from+pool, len(alns))]
		var split []int
		next := uint32(from)
		for i := range part {
			if r.Float64() < share {
				split = append(split, i)
			} else {
				part[i] = next
				next++
			}
		}
		r.Shuffle(len(split), func(i, j int) { split[i], split[j] = split[j], split[i] })
		for _, i := range split {
			part[i] = next
			next++
		}
	}
}

// BenchmarkRetrain200 is XStore's unit: one sub-model of about 200 keys.
func BenchmarkRetrain200(b *testing.B) {
	r := rand.New(rand.NewPCG(benchSeed, 3))
	l := fillLeaves(r, keysets.Uniform(r, 200))
	for _, f := range []Family{RMI, PLR} {
		b.Run(f.String(), func(b *testing.B) {
			t, err := NewTrainer(Options{Family: f})
			if err != nil {
				b.Fatal(err)
			}
			var s SubModel
			b.ReportAllocs()
			for b.Loop() {
				t.Begin(0)
				for i := range l.fences {
					t.Add(l.fences[i], l.alns[i], l.keys[i])
				}
				if _, err := t.Train(&s, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
