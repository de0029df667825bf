package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// An operation that reads the past, as of the end of tick S, begins after the
// partition has closed S. From then on there are no more commits at S or before. So
// each accepted leaf copy that covers a key shows where the key's row was at S:
//
//   - in the slot of the key, if the row there is of S or before, locked or not;
//   - or along the older versions of that row;
//   - or, if the key was deleted after S, along those of the grave of the first
//     of these deletions;
//   - or nowhere: the key was absent.
//
// At most one of these ways ends at a row, because a life of the key that began after
// S has no version of S. Nothing is validated. The answer counts only if the
// partition's floor, which the caller READs afterwards, is not above S: otherwise
// memory on the way may have been reused. The answer is therefore Gone if memory
// looks reused. A chain of versions that never ends hits the bound on READs.

// gravesWordsMax bounds the graves that one operation READs. Beyond it the server is
// faster.
const gravesWordsMax = 256 << 10

// pastOf returns the verdict on the accepted copy of a row or version for tick at.
func pastOf(h block.Header, at clock.Tick) rowVerdict {
	switch {
	case h.CSN().Tick() > at:
		return rowNewer
	case h.IsAbsent():
		return rowAbsent
	}
	return rowHere
}

// bound returns a CSN above those of all older versions of a row. A locked row may be
// about to change: then its first older version is a copy of itself.
func bound(h block.Header) block.CSN {
	if h.Locked() {
		return h.CSN() + 1
	}
	return h.CSN()
}

// readVerdict returns the verdict on a READ by its status alone. ok says that the contents
// must be judged.
func readVerdict(wr *rdma.WR, noAddress rowVerdict) (see rowVerdict, ok bool) {
	switch wr.Status {
	case rdma.StatusOK:
		return rowHere, true
	case rdma.StatusAccess:
		return noAddress, false
	}
	return rowDown, false
}

// judgePast returns the verdict on the copy of a row block for a reader of the past:
// rowPast, or the reason why it is of no use. It checks neither key nor time.
func judgePast(wr *rdma.WR, inOrder bool) rowVerdict {
	if see, ok := readVerdict(wr, rowNowhere); !ok {
		return see
	}
	h := block.Header(wr.Buf[block.HeaderWord])
	switch {
	case h == leaf.Free:
		return rowGone
	case block.AcceptVersion(wr.Buf, wr.Tail, wr.Addr, inOrder) != block.OK:
		return rowTorn
	}
	return rowPast
}

// judgeVersion does the same as judgePast for the copy of a version, whose CSN must
// be below newer.
func judgeVersion(wr *rdma.WR, newer block.CSN, inOrder bool) rowVerdict {
	if see, ok := readVerdict(wr, rowReused); !ok {
		return see
	}
	h := block.Header(wr.Buf[block.HeaderWord])
	switch {
	case !h.Locked() || h == leaf.Free || h.CSN() >= newer:
		return rowReused
	case block.AcceptVersion(wr.Buf, wr.Tail, wr.Addr, inOrder) != block.OK:
		return rowReused // a version does not change
	}
	return rowPast
}

// judgeGraves returns the verdict on the copy of a block of graves: rowHere, or the
// reason why it is of no use.
func (f *finder) judgeGraves(wr *rdma.WR) (leaf.Graves, rowVerdict) {
	if see, ok := readVerdict(wr, rowReused); !ok {
		return leaf.Graves{}, see
	}
	h := block.Header(wr.Buf[block.HeaderWord])
	switch {
	case !h.Locked() || h.IsAbsent():
		return leaf.Graves{}, rowReused
	case block.AcceptVersion(wr.Buf, wr.Tail, wr.Addr, f.c.o.InOrder) != block.OK:
		return leaf.Graves{}, rowTorn // a deletion was being added
	}
	g, ok := f.lay.GravesOf(wr.Buf)
	if !ok {
		return g, rowReused
	}
	return g, rowHere
}

// gravesFor returns the place of a leaf's graves for readers of tick at, 0 if there
// are none.
func gravesFor(v *leaf.Leaf, at clock.Tick) block.Older {
	if v.LastDelete().Tick() <= at {
		return 0
	}
	return v.Graves()
}

// versionWordsMax bounds a version or a block of graves.
const versionWordsMax = rdma.MaxReadBytes / mem.WordBytes

// validVersion reports whether a link may be followed to a version or to graves. In
// reused memory a link may be any number.
func validVersion(o block.Older) bool { return o.Valid() && o.Words() <= versionWordsMax }

// versionWords returns how many words of a version to READ.
func versionWords(l *leaf.Layout, o block.Older) int {
	if l.Kind == leaf.Strings || o.IsPatch() {
		return o.Words()
	}
	return l.RowBlockWords
}

// olderIn returns the link of a row block or version to the next older version.
func olderIn(buf []uint64) block.Older { return block.Older(buf[leaf.RowOlderWord]) }

// patches reports whether the copy of a version is a patch of a row of a key whose
// payload has so many words. Of a string key it can check only the length.
func patches(l *leaf.Layout, buf []uint64, key index.Key, words int) bool {
	if l.Kind == leaf.Strings {
		return buf[leaf.IDWord] == l.StrTag() && buf[leaf.StrSizeWord] == uint64(len(key.Str))<<32|uint64(words)
	}
	return l.RowIs(buf, key.Num)
}

// Both kinds of row block have the link in the same place.
var _ [leaf.RowOlderWord - leaf.StrOlderWord]struct{}

// pastGet has the additional state of a lookup of the past.
type pastGet struct {
	newer  block.CSN    // a CSN above that of the version being READ
	dug    bool         // the graves were READ
	graves []uint64     // memory of blocks of graves
	asked  []askedGrave // READs of them under way
	dead   []leaf.Grave // of the key, deleted after the tick
	kind   past
	patch  block.Older // the link to the version being READ, if this is a patch
	base   []uint64    // payload of the row or version to which it is applied
}

type askedGrave struct {
	of block.Older
	wr int
}

// past has the steps of a lookup of the past that depend on the kind of key.
type past interface {
	getKind
	// absent continues when the versions to which the leaf led have no row of the
	// tick.
	absent(next *rdma.Batch) bool
	// grave returns the key's word in graves: the key, or its hash.
	grave() uint64
	// mine returns the payload of a version, if it is the key's.
	mine(buf []uint64) (row []uint64, ok bool)
}

// answer ends a lookup of the past. Its answer needs no validation.
func (o *getOp) answer(s index.Status) bool {
	o.res.Proofs, o.res.Hint = nil, o.addr
	return o.finish(s)
}

func (o *getOp) was(row []uint64, h block.Header) bool {
	o.res.Row, o.res.Header, o.res.Rests = row, h.Unlock(), h.CSN()
	return o.answer(index.Found)
}

// onPast continues with the row of the key, of which h is the header.
func (o *getOp) onPast(row []uint64, h block.Header, older block.Older, next *rdma.Batch) bool {
	switch pastOf(h, o.tick) {
	case rowHere:
		return o.was(row, h)
	case rowNewer:
		return o.along(older, bound(h), row, next)
	}
	return o.ended(next)
}

// along READs the next older version, whose CSN must be below newer. row is the
// payload of the row or version that points to it, nil if a grave does.
func (o *getOp) along(older block.Older, newer block.CSN, row []uint64, next *rdma.Batch) bool {
	switch {
	case older == 0:
		return o.ended(next)
	case !validVersion(older):
		return o.answer(index.Gone)
	case o.awaitRound(getOlder, 1):
		return true
	}
	p := &o.past
	if p.newer, p.patch = newer, 0; older.IsPatch() {
		p.patch, p.base = older, append(p.base[:0], row...)
	}
	o.row = grow(o.row, versionWords(o.lay, older))
	o.wr = next.Read(o.c.rkey, older.Addr(), o.row)
	return false
}

func (o *getOp) onOlder(done, next *rdma.Batch) bool {
	wr := &done.WRs[o.wr]
	switch see := judgeVersion(wr, o.past.newer, o.c.o.InOrder); see {
	case rowDown:
		return o.down(wr)
	case rowReused:
		return o.answer(index.Gone)
	}
	if p := &o.past; p.patch != 0 {
		if !patches(o.lay, wr.Buf, o.key, len(p.base)) || !p.patch.Apply(leaf.PatchWord, p.base, wr.Buf) {
			return o.answer(index.Gone)
		}
		return o.onPast(p.base, block.Header(wr.Buf[block.HeaderWord]), olderIn(wr.Buf), next)
	}
	row, ok := o.past.kind.mine(wr.Buf)
	switch {
	case ok:
		return o.onPast(row, block.Header(wr.Buf[block.HeaderWord]), olderIn(wr.Buf), next)
	case o.past.dug:
		return o.nextDead(next) // of another key with the same hash
	}
	return o.answer(index.Gone)
}

// ended continues when the versions to which the leaf or a grave led have no row of
// the tick.
func (o *getOp) ended(next *rdma.Batch) bool {
	if o.past.dug {
		return o.nextDead(next)
	}
	return o.past.kind.absent(next)
}

// dig continues with the graves of the leaf, when the leaf led to no row of the tick.
func (o *getOp) dig(next *rdma.Batch) bool {
	p := &o.past
	p.dug, p.dead, p.asked = true, p.dead[:0], p.asked[:0]
	g := gravesFor(&o.view, o.tick)
	if g == 0 {
		return o.answer(index.NotFound)
	}
	p.asked = append(p.asked, askedGrave{of: g})
	return o.readGraves(next)
}

// readGraves appends READs of the blocks of graves in o.past.asked.
func (o *getOp) readGraves(next *rdma.Batch) bool {
	p, words := &o.past, 0
	for _, a := range p.asked {
		if !validVersion(a.of) {
			return o.answer(index.Gone)
		}
		words += a.of.Words()
	}
	if words > gravesWordsMax {
		return o.fallback()
	}
	if o.awaitRound(getGraves, 1) {
		return true
	}
	o.extra += len(p.asked) - 1
	p.graves = grow(p.graves, words)
	buf := p.graves
	for i := range p.asked {
		a := &p.asked[i]
		a.wr = next.Read(o.c.rkey, a.of.Addr(), buf[:a.of.Words():a.of.Words()])
		buf = buf[a.of.Words():]
	}
	return false
}

func (o *getOp) onGraves(done, next *rdma.Batch) bool {
	p := &o.past
	asked := len(p.asked)
	for i := range asked {
		a := p.asked[i]
		wr := &done.WRs[a.wr]
		g, see := o.judgeGraves(wr)
		switch see {
		case rowDown:
			return o.down(wr)
		case rowReused:
			return o.answer(index.Gone)
		case rowTorn:
			o.n.retries.Add(1)
			p.asked = append(p.asked, a)
			continue
		}
		for j := range g.Len() {
			if g.IsList() {
				if of, newest := g.Block(j); newest.Tick() > o.tick {
					p.asked = append(p.asked, askedGrave{of: of})
				}
			} else if d := g.Grave(j); d.Key == p.kind.grave() && d.Deleted.Tick() > o.tick {
				p.dead = append(p.dead, d)
			}
		}
	}
	p.asked = p.asked[:copy(p.asked, p.asked[asked:])]
	if len(p.asked) > 0 {
		return o.readGraves(next)
	}
	return o.nextDead(next)
}

// nextDead continues with the grave of the earliest deletion after the tick. The row
// of the tick was of this life of the key, unless other keys share the key's hash.
func (o *getOp) nextDead(next *rdma.Batch) bool {
	p := &o.past
	if len(p.dead) == 0 {
		return o.answer(index.NotFound)
	}
	first := 0
	for i := range p.dead {
		if p.dead[i].Deleted < p.dead[first].Deleted {
			first = i
		}
	}
	d, last := p.dead[first], len(p.dead)-1
	p.dead[first], p.dead = p.dead[last], p.dead[:last]
	return o.along(d.Older, d.Deleted, nil, next)
}

// nativePast has the steps of a lookup of the past of a native key.
type nativePast struct{ *nativeGet }

func (g nativePast) search(next *rdma.Batch) (see leafVerdict, finished bool) {
	o := g.o
	o.past.dug = false
	if see := sideOf(&o.view, o.key.Num); see != seeHere {
		return see, false
	}
	g.inside()
	switch i := o.view.Find(o.key.Num); {
	case i < 0:
		return seeHere, o.dig(next)
	case o.lay.Kind != leaf.Inline:
		g.one[0] = rowAt{o.view.Head(i), o.lay.RowBlockWords}
		o.rows = g.one[:]
		return seeHere, o.readRows(next)
	default:
		return seeHere, o.onPast(o.view.Row(i), block.Header(o.view.Head(i)), o.view.Older(i), next)
	}
}

func (g nativePast) judge(done *rdma.Batch, i int) (rowVerdict, []uint64) {
	wr := &done.WRs[i]
	see := judgePast(wr, g.o.c.o.InOrder)
	if see != rowPast {
		return see, nil
	}
	row, ok := g.mine(wr.Buf)
	if !ok {
		return rowGone, nil
	}
	return rowPast, row
}

func (g nativePast) absent(next *rdma.Batch) bool { return g.o.dig(next) }
func (g nativePast) grave() uint64                { return g.o.key.Num }

func (g nativePast) mine(buf []uint64) (row []uint64, ok bool) {
	if !g.o.lay.RowIs(buf, g.o.key.Num) {
		return nil, false
	}
	return buf[leaf.RowWord : leaf.RowWord+g.o.lay.RowWords], true
}

// stringPast has the steps of a lookup of the past of a string key.
type stringPast struct{ *stringGet }

func (g stringPast) search(next *rdma.Batch) (see leafVerdict, finished bool) {
	g.o.past.dug = false
	return g.stringGet.search(next)
}

func (g stringPast) judge(done *rdma.Batch, i int) (rowVerdict, []uint64) {
	wr := &done.WRs[i]
	see := judgePast(wr, g.o.c.o.InOrder)
	if see != rowPast {
		return see, nil
	}
	key, row, ok := g.o.lay.StrRow(wr.Buf)
	switch {
	case !ok:
		return rowGone, nil
	case key != g.o.key.Str:
		return rowOther, nil
	case g.o.fenceWR >= 0:
		g.learnFence(done)
	}
	return rowPast, row
}

// absent READs the leaf once more if several slots may point to the key's row: a
// block that was examined may have been reused for another row after the READ of the
// leaf.
func (g stringPast) absent(next *rdma.Batch) bool {
	if len(g.all) > 1 && g.cleared != g.o.view.Header() {
		return g.others(next)
	}
	return g.stringGet.absent(next)
}

func (g stringPast) grave() uint64 { return leaf.Hash(g.o.key.Str) }

func (g stringPast) mine(buf []uint64) (row []uint64, ok bool) {
	key, row, ok := g.o.lay.StrRow(buf)
	return row, ok && key == g.o.key.Str
}
