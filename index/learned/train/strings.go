package train

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
)

// stringKeys implements keyKind for string keys. A model is trained on digests: the
// eight bytes after the common prefix of the fences within its sub-model.
type stringKeys struct {
	t       Leaves
	digests []uint64
	// Of the sub-model trained last: the longest run of fences with one digest, the
	// number of leaves, and its quality.
	ties, leafCount int
	q               model.Quality
}

// crowded reports true if too many fences have one digest, or if no few lines fit
// them, as with keys of a small alphabet. Smaller sub-models help, because the router
// compares whole strings.
func (k *stringKeys) crowded() bool {
	q := &k.q
	return k.leafCount > tiesMax && (k.ties > 2*tiesMax || q.ErrorMax > errorMost || q.FirstLeafWrong > q.Keys/4)
}

// cut does the same as partition, and halves leaves that partition does not divide.
func (k *stringKeys) cut(lows []index.Key, leaves int) []index.Key {
	if starts := k.partition(lows, leaves)[1:]; len(starts) > 0 || len(lows) <= tiesMax {
		return starts
	}
	return []index.Key{lows[len(lows)/2]}
}

// tiesMax is how many leaves of a sub-model may have low fences with one digest. The
// model leads to the first of them, right links lead to the others.
const tiesMax = 3

// errorMost is the error of a sub-model, in leaves, from which it is crowded: half of
// the steps to the left that a lookup may take.
const errorMost = 2

// commonPrefix returns the common prefix of the strings of an ascending list.
func commonPrefix(lows []index.Key) string {
	first := lows[0].Str
	return first[:leaf.Common(first, lows[len(lows)-1].Str)]
}

// partition chooses sub-models by digests, as model.Partition does. Where many fences
// have one digest, it makes a sub-model of these, which has a longer prefix and so
// different digests. Fences that no prefix distinguishes, such as those that differ
// only in trailing zero bytes, get a sub-model each: the router compares whole
// strings.
func (k *stringKeys) partition(lows []index.Key, leaves int) []index.Key {
	if len(lows) < 3 {
		return lows[:1:1]
	}
	// The first fence does not matter: all keys below the second one are in the first
	// leaf.
	p := partitioner{leaves: leaves, lows: lows[1:]}
	p.starts = append(p.starts, lows[0])
	p.cut(0, len(p.lows), -1)
	return p.starts
}

type partitioner struct {
	leaves int
	lows   []index.Key
	starts []index.Key
}

// start begins a sub-model at the fence numbered i.
func (p *partitioner) start(i int) {
	if s := p.lows[i]; s.Str > p.starts[len(p.starts)-1].Str {
		p.starts = append(p.starts, s)
	}
}

// cut divides the fences [from, to), whose common prefix is longer than outer bytes
// if they are part of a larger range. The caller adds a start for the first of them.
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
		if d := leaf.Digest(s.Str[len(prefix):]); i == 0 || d != digests[len(digests)-1] {
			digests, at = append(digests, d), append(at, from+i)
		}
	}
	at = append(at, to)
	starts := model.Partition(digests, p.leaves)
	tied := false // the previous fences had one digest
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

// train fits one sub-model. Of leaves whose low fences have one digest it adds only
// the first.
func (k *stringKeys) train(tr *model.Trainer, start, _ index.Key, lows []index.Key, addrs []uint64, dst *model.SubModel, version uint32) (q model.Quality, prefix string, err error) {
	lay := k.t.Layout()
	if len(lows) > 1 {
		prefix = commonPrefix(lows[1:])
	}
	last := leaf.DigestAfter(prefix, start.Str)
	if len(lows) > 1 && leaf.Digest(lows[1].Str[len(prefix):]) <= last {
		last = 0 // the first fence is below all others; its digest need not be
	}
	tr.Begin(last)
	k.ties = 0
	run := 0
	for i, addr := range addrs {
		d := last
		if i > 0 {
			if d = leaf.Digest(lows[i].Str[len(prefix):]); d <= last {
				run++
				k.ties = max(k.ties, run)
				continue
			}
		}
		last, run = d, 0
		tr.Add(d, lay.ALN(addr), k.leafDigests(addr, lows[i].Str, i > 0, len(prefix), d))
	}
	q, err = tr.Train(dst, version)
	k.q, k.leafCount = q, len(lows)
	return q, prefix, err
}

// leafDigests returns the digests of a leaf's keys after the sub-model's prefix of so
// many bytes, as far as the leaf alone determines them. low is the digest of its low
// fence.
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
