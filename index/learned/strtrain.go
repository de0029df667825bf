package learned

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/index/learned/tree"
)

// stringKeys is the keyKind of string keys, over a tree.Tree. A model is
// trained on digests: the eight bytes after a prefix that the fences within its
// sub-model have in common.
type stringKeys struct {
	t       *tree.Tree
	digests []uint64
	prefix  []uint64
	// Of the sub-model trained last: the longest run of fences that tie, all leaves, and how well it does.
	ties, leafCount int
	q               model.Quality
}

func (k *stringKeys) tidy(limit int) bool { return k.t.Tidy(limit) }

func (k *stringKeys) leaves() uint64 { return k.t.Leaves() }

func (k *stringKeys) fences(from, to string, bounded bool, limit int, lows []string, addrs []uint64) (l []string, a []uint64, next string, more bool) {
	k.t.Walk(index.Str(from), func(low index.Key, leaf uint64) bool {
		if more = limit == 0 || bounded && low.Str >= to; more {
			next = low.Str
			return false
		}
		limit--
		lows, addrs = append(lows, low.Str), append(addrs, leaf)
		return true
	})
	return lows, addrs, next, more
}

func (k *stringKeys) newRouter(starts []string) (keyRouter[string], error) {
	return newStrRouter(starts)
}

func (k *stringKeys) reaches(high, start string) bool { return high == "" || start < high }

// crowded is for fences that tie or that no few lines fit, as those of keys of a
// small alphabet: the router, which knows whole strings, can do for models.
func (k *stringKeys) crowded() bool {
	q := &k.q
	return k.leafCount > tiesMax && (k.ties > 2*tiesMax || q.ErrorMax > maxLeft/2 || q.FirstLeafWrong > q.Keys/4)
}

// cut is partition, and halves what that does not divide.
func (k *stringKeys) cut(lows []string, leaves int) []string {
	if starts := k.partition(lows, leaves)[1:]; len(starts) > 0 || len(lows) <= tiesMax {
		return starts
	}
	return []string{lows[len(lows)/2]}
}

func (k *stringKeys) magics() (sub, chunk uint32) { return magicStrSub, magicStrChunk }

func (k *stringKeys) appendChunk(dst []uint64, starts []string, pointers []uint64) []uint64 {
	return appendStrChunk(dst, starts, pointers)
}

func (k *stringKeys) pointerWord(_, i int) int { return chunkStarts + i }

func (k *stringKeys) chunkEntry(c chunkBlock) uint64 { return uint64(newPointer(c.addr, c.words)) }

// tiesMax is how many leaves whose low fences have one digest a sub-model may
// have. The model leads to the first of them, and right links to the others.
const tiesMax = 3

// commonPrefix is what the strings of an ascending list have in common.
func commonPrefix(lows []string) string {
	return lows[0][:leaf.Common(lows[0], lows[len(lows)-1])]
}

// partition chooses sub-models as model.Partition does, by digests. Where
// digests tie for long, it makes a sub-model of the fences that tie, which has
// a longer prefix that tells them apart. Fences that no prefix tells apart, as
// those that differ in trailing zero bytes alone, get a sub-model each: the
// router knows whole strings.
func (k *stringKeys) partition(lows []string, leaves int) []string {
	if len(lows) < 3 {
		return lows[:1:1]
	}
	// What the first fence is does not matter: all below the second are its leaf's.
	p := partitioner{leaves: leaves, lows: lows[1:]}
	p.starts = append(p.starts, lows[0])
	p.cut(0, len(p.lows), -1)
	return p.starts
}

type partitioner struct {
	leaves int
	lows   []string
	starts []string
}

// start begins a sub-model at the fence numbered i.
func (p *partitioner) start(i int) {
	if s := p.lows[i]; s > p.starts[len(p.starts)-1] {
		p.starts = append(p.starts, s)
	}
}

// cut divides the fences [from, to), which begin with more than outer bytes in
// common if they are part of a larger range. A start for the first of them is
// the caller's matter.
func (p *partitioner) cut(from, to, outer int) {
	lows := p.lows[from:to]
	if len(lows) < 2 {
		return
	}
	prefix := commonPrefix(lows)
	if len(prefix) <= outer {
		for i := from + 1; i < to; i++ {
			p.start(i)
		}
		return
	}
	var digests []uint64
	var at []int // the first fence of each digest
	for i, s := range lows {
		if d := leaf.Digest(s[len(prefix):]); i == 0 || d != digests[len(digests)-1] {
			digests, at = append(digests, d), append(at, from+i)
		}
	}
	at = append(at, to)
	starts := model.Partition(digests, p.leaves)
	tied := false // the fences before tied
	for i := range digests {
		runs := at[i+1]-at[i] > tiesMax
		if len(starts) > 0 && digests[i] == starts[0] {
			starts = starts[1:]
			tied = tied || i > 0
		}
		if runs || tied {
			p.start(at[i])
		}
		if tied = runs; runs {
			p.cut(at[i], at[i+1], len(prefix))
		}
	}
}

// train fits one sub-model. Of leaves whose low fences tie it knows the first.
func (k *stringKeys) train(tr *model.Trainer, start, _ string, lows []string, addrs []uint64, dst *model.SubModel, version uint32) (q model.Quality, head []uint64, err error) {
	prefix, lay := "", k.t.Layout()
	if len(lows) > 1 {
		prefix = commonPrefix(lows[1:])
	}
	last := leaf.DigestAfter(prefix, start)
	if len(lows) > 1 && leaf.Digest(lows[1][len(prefix):]) <= last {
		last = 0 // the first fence is below all others; its digest need not be
	}
	tr.Begin(last)
	k.ties = 0
	run := 0
	for i, addr := range addrs {
		d := last
		if i > 0 {
			if d = leaf.Digest(lows[i][len(prefix):]); d <= last {
				run++
				k.ties = max(k.ties, run)
				continue
			}
		}
		last, run = d, 0
		tr.Add(d, lay.ALN(addr), k.leafDigests(addr, lows[i], i > 0, len(prefix), d))
	}
	q, err = tr.Train(dst, version)
	k.q, k.leafCount = q, len(lows)
	k.prefix = appendStrPrefix(k.prefix[:0], start, prefix)
	return q, k.prefix, err
}

// leafDigests are the digests of a leaf's keys after the sub-model's prefix of
// so many bytes, as far as the leaf alone tells. low is the digest of its low fence.
func (k *stringKeys) leafDigests(addr uint64, fence string, inner bool, prefix int, low uint64) []uint64 {
	var own int
	var ok bool
	if k.digests, own, ok = k.t.Keys(addr, k.digests[:0]); !ok || !inner || own < prefix || own > len(fence) {
		return nil
	}
	shift := 8 * min(own-prefix, 8)
	for i, d := range k.digests {
		k.digests[i] = low&^(^uint64(0)>>shift) | d>>shift
	}
	return k.digests
}
