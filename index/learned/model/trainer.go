package model

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Options says how sub-models are trained. The zero value of each field picks
// the default.
type Options struct {
	// Family of the lines; default PLR.
	Family Family
	// CorrectionBits is the most bits per leaf that corrections may take, up to 16;
	// default 10. A negative value leaves corrections out, as the papers do.
	CorrectionBits int
	// EntryBits is how many bits per leaf the TT should take in all; default 16, less
	// than 8 % of the 26 bytes that a leaf costs in inner nodes after splits. Where
	// ALNs need many bits, because leaves were split off to distant places,
	// corrections shrink to as few as 8 bits to meet it.
	EntryBits int
	// CorrectionStep is the corrections' resolution in steps per leaf, rounded to a
	// power of two up to 1024; default 64. Steps are coarser where CorrectionBits
	// requires it.
	CorrectionStep int
	// ErrorLeaves is PLR's first error bound in leaves, up to 64; default 4.
	// While first-leaf accuracy misses WrongShare, tighter bounds are tried.
	ErrorLeaves int
	// WrongShare is the share of present keys whose first leaf may be wrong
	// before PLR spends more segments; default 0.02.
	WrongShare float64
	// LeavesPerSegment bounds PLR's segments: one is allowed for so many leaves, and
	// always at least one; default 192. Where that is too few, there is one segment
	// for each cluster of keys, and the TT has refinements. Where these do not
	// suffice either, there may be a segment per 16 leaves.
	LeavesPerSegment int
	// LeavesPerRefinement bounds refinements in the same way; default 24.
	LeavesPerRefinement int
}

func (o Options) withDefaults() (Options, error) {
	set := func(p *int, def int) {
		if *p == 0 {
			*p = def
		}
	}
	if o.Family == 0 {
		o.Family = PLR
	}
	set(&o.CorrectionBits, 10)
	set(&o.EntryBits, 16)
	set(&o.CorrectionStep, 64)
	set(&o.ErrorLeaves, 4)
	set(&o.LeavesPerSegment, 192)
	set(&o.LeavesPerRefinement, 24)
	if o.WrongShare == 0 {
		o.WrongShare = 0.02
	}
	var errs []error
	bad := func(cond bool, field string, value any) {
		if cond {
			errs = append(errs, fmt.Errorf("model: Options.%s %v is out of range", field, value))
		}
	}
	bad(o.Family > PLR, "Family", o.Family)
	bad(o.CorrectionBits > correctionBitsMax, "CorrectionBits", o.CorrectionBits)
	bad(o.EntryBits < 1 || o.EntryBits > correctionBitsMax+32, "EntryBits", o.EntryBits)
	bad(o.CorrectionStep < 1 || o.CorrectionStep > 1024, "CorrectionStep", o.CorrectionStep)
	bad(o.ErrorLeaves < 1 || o.ErrorLeaves > 64, "ErrorLeaves", o.ErrorLeaves)
	bad(o.LeavesPerSegment < 1, "LeavesPerSegment", o.LeavesPerSegment)
	bad(o.LeavesPerRefinement < 1, "LeavesPerRefinement", o.LeavesPerRefinement)
	bad(!(o.WrongShare > 0 && o.WrongShare <= 1), "WrongShare", o.WrongShare)
	return o, errors.Join(errs...)
}

// Quality says how well a sub-model finds the keys it was trained on when its
// TT is held. Sums over sub-models are meaningful; FirstLeafWrong/Keys is the
// share of keys that need more than the first READ, ErrorSum/Keys the mean
// error in leaves.
type Quality struct {
	Leaves         int
	Keys           int
	FirstLeafWrong int
	ErrorSum       int // leaves
	ErrorMax       int // leaves
	// Errors counts the keys that are not in the first leaf by their error in
	// leaves: exactly 1, 2, then up to 4, 8 and so on; the last has the rest.
	Errors [ErrorClasses]int
}

// ErrorClasses is the number of classes that Quality.Errors tells apart.
const ErrorClasses = 8

// Add adds q2 to q.
func (q *Quality) Add(q2 Quality) {
	q.Leaves += q2.Leaves
	q.Keys += q2.Keys
	q.FirstLeafWrong += q2.FirstLeafWrong
	q.ErrorSum += q2.ErrorSum
	q.ErrorMax = max(q.ErrorMax, q2.ErrorMax)
	for i, n := range q2.Errors {
		q.Errors[i] += n
	}
}

// ErrBadLeaves is wrapped by Train's errors about the leaves it was given: none,
// too many, low fences that do not rise, or a first one above the start.
var ErrBadLeaves = errors.New("model: leaves not trainable")

// A Trainer fits sub-models one at a time: Begin, Add for each leaf in key order,
// Train. Its scratch memory is kept between sub-models, so that steady retraining
// does not allocate. A Trainer is for one goroutine; several may run concurrently.
type Trainer struct {
	opt    Options
	start  uint64
	fences []uint64 // low fence of each leaf; [0] is replaced by start
	alns   []uint32
	keys   []uint64
	ends   []int // keys of leaf i are keys[ends[i-1]:ends[i]]
	bad    error

	corrLimit int // bits

	pla     pla
	points  []point
	segs    []segment
	seconds []segment // refinements
	refined []uint64  // the candidate's, encoded

	cand  SubModel // the candidate's lines: positions come from here only
	begin []int64  // position of leaf i's low fence
	prior []int64  // position of the last possible key below it
	cells []int64
	best  candidate
	res   []int64 // ALN less logical leaf number
	order []int64

	num   numbering
	means []int64  // where in the sub-model an extent's leaves are
	ranks []uint16 // of an extent, by that
}

// A candidate is a fit under consideration.
type candidate struct {
	segs                     []segment
	refined                  []uint64
	corr                     []uint32
	lineResiduals            uint64
	residualMin, residualMax int64
	slackLo, slackHi         int64 // cells
	corrBits, corrShift      int
	q                        Quality
}

// NewTrainer checks the options, reporting all faults together.
func NewTrainer(opt Options) (*Trainer, error) {
	o, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Trainer{opt: o}, nil
}

// Begin starts a sub-model whose key interval begins at start.
func (t *Trainer) Begin(start uint64) {
	t.start, t.bad = start, nil
	t.fences, t.alns = t.fences[:0], t.alns[:0]
	t.keys, t.ends = t.keys[:0], t.ends[:0]
}

// Add appends the next leaf: its low fence, its actual leaf number and its present
// keys in ascending order, which are copied. The first leaf is the one that holds
// start, so its fence may lie below it. Keys only steer the choice among equally good
// models and feed [Quality]. Bounds depend on fences alone, so keys may be stale or
// nil. Train reports faults.
func (t *Trainer) Add(low uint64, aln uint32, keys []uint64) {
	n := len(t.fences)
	switch {
	case t.bad != nil:
		return
	case n >= MaxLeaves:
		t.bad = fmt.Errorf("%w: more than %d", ErrBadLeaves, MaxLeaves)
		return
	case n == 0 && low > t.start:
		t.bad = fmt.Errorf("%w: first low fence %d is above the start %d", ErrBadLeaves, low, t.start)
		return
	case n == 0:
		low = t.start
	case low <= t.fences[n-1]:
		t.bad = fmt.Errorf("%w: leaf %d has low fence %d after %d", ErrBadLeaves, n, low, t.fences[n-1])
		return
	}
	t.fences = append(t.fences, low)
	t.alns = append(t.alns, aln)
	t.keys = append(t.keys, keys...)
	t.ends = append(t.ends, len(t.keys))
}

// Train fits the leaves added since Begin into dst, whose memory is reused, and
// stamps it with version. After an error dst is unchanged.
func (t *Trainer) Train(dst *SubModel, version uint32) (Quality, error) {
	if t.bad != nil {
		return Quality{}, t.bad
	}
	if len(t.fences) == 0 {
		return Quality{}, fmt.Errorf("%w: none added", ErrBadLeaves)
	}
	base, alnBits, cost := t.chooseALN()
	others := (cost + len(t.fences) - 1) / len(t.fences)
	t.corrLimit = min(t.opt.CorrectionBits, max(t.opt.EntryBits-others, yieldBits))
	t.fit()
	t.fill(dst, version, base, alnBits)
	return t.best.q, nil
}

// yieldBits is the least size to which corrections shrink in favour of ALNs: below it
// accuracy falls faster than memory.
const yieldBits = 8

// fit chooses a fit and stores it in t.best.
func (t *Trainer) fit() {
	t.best.q.FirstLeafWrong = -1
	fences := t.fences[1:]
	if len(fences) == 0 || t.opt.Family == RMI {
		t.segs = t.segs[:0]
		if len(fences) > 0 {
			t.segs = append(t.segs, regress(fences))
		}
		t.consider()
		return
	}
	limit := max(1, len(t.fences)/t.opt.LeavesPerSegment)
	enough := int(t.opt.WrongShare * float64(len(t.keys)))
	if t.fitLines(limit, enough) {
		return
	}
	corrLimit := t.corrLimit
	t.fitRefined(enough)
	t.corrLimit = corrLimit
	if most := len(t.fences) / leavesPerSegmentMost; most > limit && (t.best.q.FirstLeafWrong < 0 || t.best.q.FirstLeafWrong > enough) {
		// Keys cluster so narrowly that chords do not distinguish them.
		_ = t.fitLines(most, enough)
	}
	if t.best.q.FirstLeafWrong < 0 { // no line is within the first bound
		t.segs = append(t.segs[:0], regress(fences))
		t.consider()
	}
}

// leavesPerSegmentMost bounds the segments where fewer do not suffice.
const leavesPerSegmentMost = 16

// fitLines considers lines of ever smaller errors, and reports whether they put
// all but enough keys into the right leaf.
func (t *Trainer) fitLines(limit, enough int) bool {
	t.points = fencePoints(t.points[:0], t.fences[1:])
	for eps := int64(t.opt.ErrorLeaves) << fracBits; eps >= one/8; eps /= 2 {
		segs, ok := piecewise(t.segs[:0], &t.pla, t.points, eps, limit)
		t.segs = segs
		if !ok {
			break
		}
		t.consider()
		if t.best.q.FirstLeafWrong <= enough {
			return true
		}
	}
	return false
}

// consider measures the lines in t.segs and keeps them if they are the best
// yet.
func (t *Trainer) consider() {
	t.cand.begin(t.start, 0, t.opt.Family, t.segs)
	var c candidate
	c.segs, c.refined, c.corr = t.best.segs[:0], t.best.refined[:0], t.best.corr[:0]
	if len(t.refined) == 0 {
		t.centre()
	} else {
		t.positions()
		t.measure(&c)
		c.lineResiduals = pairOf(c.residualMin, c.residualMax)
		t.refinePositions()
	}
	t.measure(&c)
	if t.opt.CorrectionBits >= 0 {
		t.correct(&c)
	}
	t.rate(&c)
	if t.best.q.FirstLeafWrong < 0 || c.q.FirstLeafWrong < t.best.q.FirstLeafWrong {
		c.segs = append(c.segs, t.segs...)
		c.refined = append(c.refined, t.refined...)
		c.corr = t.corrections(c.corr, &c)
		t.best = c
	}
}

// centre shifts all lines by the mean residual, so that the line's own guess is
// the best one without a TT.
func (t *Trainer) centre() {
	t.positions()
	n := int64(len(t.fences) - 1)
	if n == 0 {
		return
	}
	sum := int64(0)
	for i, p := range t.begin {
		sum += p - int64(i+1)<<fracBits
	}
	for i := range t.segs {
		t.segs[i].line = t.segs[i].line.withBase(t.segs[i].line.base() - sum/n)
	}
	t.cand.begin(t.start, 0, t.opt.Family, t.segs)
	t.positions()
}

// positions evaluates the candidate at both edges of every fence, with the
// function that lookups use.
func (t *Trainer) positions() {
	t.begin, t.prior = t.begin[:0], t.prior[:0]
	for i, f := range t.fences[1:] {
		t.begin = append(t.begin, t.cand.position(f))
		if i == 0 {
			// Keys below the first fence bypass the lines.
			t.prior = append(t.prior, t.begin[0]-1)
		} else {
			t.prior = append(t.prior, t.cand.position(f-1))
		}
	}
}

// measure bounds the residuals. A key at or above fence i has a position of at
// least begin[i], a key below it one of at most prior[i], since positions never
// fall.
func (t *Trainer) measure(c *candidate) {
	for i := range t.begin {
		y := int64(i+1) << fracBits
		lo, hi := t.begin[i]-y, t.prior[i]+1-y
		if i == 0 {
			c.residualMin, c.residualMax = lo, hi
		}
		c.residualMin, c.residualMax = min(c.residualMin, lo), max(c.residualMax, hi)
	}
}

// correct chooses the corrections' resolution and cells.
func (t *Trainer) correct(c *candidate) {
	shift := fracBits - bits.Len(uint(t.opt.CorrectionStep-1))
	shift = max(shift, 1)
	for ; ; shift++ {
		top := t.chooseCells(c, uint(shift))
		c.corrBits, c.corrShift = bits.Len64(uint64(top)), shift
		t.slack(c)
		if c.corrBits <= t.corrLimit && max(c.slackLo, c.slackHi) <= math.MaxUint16 {
			return
		}
	}
}

// slack bounds how far cells are from where leaves truly begin.
func (t *Trainer) slack(c *candidate) {
	c.slackLo, c.slackHi = 0, 0
	for i, cell := range t.cells {
		begin := (t.begin[i] - c.residualMin) >> c.corrShift
		prior := (t.prior[i] - c.residualMin) >> c.corrShift
		c.slackLo = max(c.slackLo, cell-begin)
		c.slackHi = max(c.slackHi, prior+1-cell)
	}
}

// chooseCells picks for every fence the cell at its position or the one just above,
// whichever puts fewer present keys on the wrong side. It returns the largest
// correction.
func (t *Trainer) chooseCells(c *candidate, shift uint) int64 {
	t.cells = t.cells[:0]
	top, last := int64(0), int64(0)
	for i, p := range t.begin {
		cell := (p - c.residualMin) >> shift
		if at := cell<<shift + c.residualMin; at < p {
			if below := t.keysAtOrAbove(i, at); below > 0 && t.keysBelow(i+1, at+1<<shift) < below {
				cell++
			}
		}
		cell = max(cell, last)
		last = cell
		t.cells = append(t.cells, cell)
		top = max(top, cell-int64(i+1)<<fracBits>>shift)
	}
	return top
}

// leafKeys returns the present keys of leaf i.
func (t *Trainer) leafKeys(i int) []uint64 {
	if i == 0 {
		return t.keys[:t.ends[0]]
	}
	return t.keys[t.ends[i-1]:t.ends[i]]
}

// keysAtOrAbove counts the keys of leaf i whose position is at least p.
func (t *Trainer) keysAtOrAbove(i int, p int64) int {
	keys := t.leafKeys(i)
	n := len(keys)
	for n > 0 && keys[n-1] >= t.cand.anchor && t.position(keys[n-1]) >= p {
		n--
	}
	return len(keys) - n
}

// keysBelow counts the keys of leaf i whose position is below p.
func (t *Trainer) keysBelow(i int, p int64) int {
	keys := t.leafKeys(i)
	n := 0
	for n < len(keys) && (keys[n] < t.cand.anchor || t.position(keys[n]) < p) {
		n++
	}
	return n
}

// rate counts the present keys whose first leaf is wrong.
func (t *Trainer) rate(c *candidate) {
	c.q = Quality{Leaves: len(t.fences), Keys: len(t.keys)}
	for i := range t.fences {
		keys := t.leafKeys(i)
		low, high := 0, 0
		if i > 1 {
			low = t.keysBelow(i, t.threshold(c, i))
		}
		if i > 0 && i+1 < len(t.fences) {
			high = min(t.keysAtOrAbove(i, t.threshold(c, i+1)), len(keys)-low)
		}
		for _, k := range keys[:low] {
			c.q.miss(i - t.leafAt(c, k))
		}
		for _, k := range keys[len(keys)-high:] {
			c.q.miss(t.leafAt(c, k) - i)
		}
	}
}

func (q *Quality) miss(leaves int) {
	if leaves <= 0 {
		return // the window has corrected it
	}
	q.FirstLeafWrong++
	q.ErrorSum += leaves
	q.Errors[min(bits.Len(uint(leaves-1)), ErrorClasses-1)]++
	q.ErrorMax = max(q.ErrorMax, leaves)
}

// threshold returns the lowest position that lookups take to be in leaf i ≥ 1.
func (t *Trainer) threshold(c *candidate, i int) int64 {
	if t.opt.CorrectionBits < 0 {
		return int64(i) << fracBits
	}
	return t.cells[i-1]<<c.corrShift + c.residualMin
}

// leafAt returns the leaf that lookups will choose for a present key.
func (t *Trainer) leafAt(c *candidate, key uint64) int {
	if key < t.cand.anchor {
		return 0
	}
	p := t.position(key)
	last := len(t.fences) - 1
	lo := clamp((p-c.residualMax)>>fracBits, last)
	hi := max(lo, clamp((p-c.residualMin)>>fracBits, last))
	for lo < hi {
		mid := (lo + hi + 1) / 2
		if t.threshold(c, mid) <= p {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// corrections appends the corrections of leaves 1 … L-1 to dst.
func (t *Trainer) corrections(dst []uint32, c *candidate) []uint32 {
	if t.opt.CorrectionBits < 0 {
		return dst
	}
	for i, cell := range t.cells {
		dst = append(dst, uint32(max(0, cell-int64(i+1)<<fracBits>>c.corrShift)))
	}
	return dst
}

// fill writes the chosen fit and the TT to dst.
func (t *Trainer) fill(dst *SubModel, version uint32, base int64, alnBits int) {
	c := &t.best
	dst.begin(t.start, version, t.opt.Family, c.segs)
	dst.leaves = uint16(len(t.fences))
	dst.residualMin, dst.residualMax = int32(c.residualMin), int32(c.residualMax)
	if dst.body[2] = c.lineResiduals; len(c.refined) == 0 {
		dst.body[2] = pairOf(c.residualMin, c.residualMax)
	}
	dst.slackLo, dst.slackHi = uint16(c.slackLo), uint16(c.slackHi)
	dst.corrBits, dst.corrShift = uint8(c.corrBits), uint8(c.corrShift)
	dst.flags |= flagTT
	blocks := t.num.shift > 0
	if blocks {
		t.num.fillList(dst)
	} else {
		dst.alnBase, dst.alnBits = uint32(base), uint8(alnBits)
		t.residuals(dst, base)
	}
	dst.ttAt = uint16(len(dst.body))
	c.fillRefinements(dst)
	front, words := len(dst.body), int(dst.ttAt)+dst.ttWords()
	dst.body = slices.Grow(dst.body, words-front)[:words]
	tt := dst.body[front:]
	clear(tt)
	g := dst.grid()
	for i, k := range c.corr {
		putBits(tt, g.at(i+1), uint(dst.corrBits), uint64(k))
	}
	if blocks {
		t.fillBlocks(dst, tt)
		return
	}
	for i, r := range t.res {
		putBits(tt, g.at(i)+uint(dst.corrBits), uint(dst.alnBits), uint64(r))
	}
}

// residuals makes the ALN residuals relative to base, and exceptions of those
// that dst's entries cannot hold.
func (t *Trainer) residuals(dst *SubModel, base int64) {
	limit := int64(1) << dst.alnBits
	exceptional := t.outside(base, limit) > 0
	if exceptional {
		limit-- // all ones marks an exception
	}
	for i, r := range t.res {
		r -= base
		if exceptional && (r < 0 || r >= limit) {
			dst.body = append(dst.body, uint64(i)<<32|uint64(t.alns[i]))
			dst.body[1]++ // counts
			r = limit
		}
		t.res[i] = r
	}
}

func putBits(words []uint64, at, width uint, e uint64) {
	if width == 0 {
		return
	}
	words[at>>6] |= e << (at & 63)
	if at&63+width > 64 {
		words[at>>6+1] |= e >> (64 - at&63)
	}
}

// outside counts the residuals that are not in [base, base+limit).
func (t *Trainer) outside(base, limit int64) int {
	n := 0
	for _, r := range t.res {
		if r-base < 0 || r-base >= limit {
			n++
		}
	}
	return n
}

// chooseALN picks base and width of the ALN residuals so that table and exceptions
// together are smallest. If any ALN is outside the base's range, the highest residual
// marks exceptions. It chooses blocks with a list of extents instead, in t.num, where
// they take less. cost is the total size in bits.
func (t *Trainer) chooseALN() (base int64, width, cost int) {
	t.res = t.res[:0]
	for i, a := range t.alns {
		t.res = append(t.res, int64(a)-int64(i))
	}
	lo, hi := slices.Min(t.res), slices.Max(t.res)
	width = bits.Len64(uint64(hi - lo))
	base, t.num.shift = lo, 0
	if width == 0 {
		return base, 0, 0
	}
	t.order = append(t.order[:0], t.res...)
	slices.Sort(t.order)
	n := len(t.order)
	cost = n * width
	for w := width - 1; w >= 1; w-- {
		span := int64(1)<<w - 1
		most, from := 0, lo
		for i, j := 0, 0; i < n; i++ {
			for j < n && t.order[j]-t.order[i] < span {
				j++
			}
			if j-i > most {
				most, from = j-i, t.order[i]
			}
		}
		if c := n*w + 64*(n-most); c < cost {
			cost, base, width = c, from, w
		}
	}
	return base, width, t.chooseBlocks(cost)
}
