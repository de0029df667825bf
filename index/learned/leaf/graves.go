package leaf

import "drtmx/internal/block"

// A deletion removes the row from its leaf at once. It leaves a grave for readers of
// the past: the key, the time of the deletion, and the version of the row that was
// deleted. The graves of a leaf's range are in blocks outside the leaf. So they cost
// readers of the present nothing, and leaves that deletions have emptied can be
// merged at once.
//
// A key that was inserted again keeps its graves: each belongs to one life of the
// key, and the row in the leaf to the present life. So if a reader of tick S finds no
// version of tick S or before, and the leaf's last delete has a tick above S, the
// reader takes the key's grave with the earliest deletion after S, and goes on with
// the version there.

// Words of a block of graves, and of a list of such blocks. The header is locked,
// like that of a version: it proves nothing.
const (
	GraveCountWord   = 3
	GraveEntriesWord = 4
	graveWords       = 3
	graveListWords   = 2
)

const (
	gravesMagic    = 0x47726176
	graveListMagic = 0x476c6973
)

// GravesOpen stands, in a list, for the newest deletion of a block to which deletions
// may still be added.
const GravesOpen = ^block.CSN(0)

// Grave is one deletion. Older is the version of the row that was deleted, or the
// next older one if that row had the tick of the deletion.
type Grave struct {
	Key     uint64 // a native key, or the Hash of a string key
	Deleted block.CSN
	Older   block.Older
}

// Graves is an accepted copy of a block of graves, or of a list of such blocks.
type Graves struct {
	words []uint64
	list  bool
}

// GravesOf decodes the accepted copy of a block to which a leaf or a list points;
// false if it is no such block. For readers of a tick at or above the partition's
// floor it always is one.
func (l *Layout) GravesOf(buf []uint64) (Graves, bool) {
	if len(buf) < GraveEntriesWord {
		return Graves{}, false
	}
	g := Graves{buf, buf[IDWord] == l.GraveListTag()}
	ok := g.list || buf[IDWord] == l.GravesTag()
	return g, ok && buf[GraveCountWord] <= uint64(graveRoom(len(buf), g.list))
}

// graveRoom is the number of entries in a block.
func graveRoom(words int, list bool) int {
	if list {
		return (words - GraveEntriesWord) / graveListWords
	}
	return (words - GraveEntriesWord) / graveWords
}

// GraveRoom is the number of graves in a block of so many words.
func GraveRoom(words int) int { return graveRoom(words, false) }

// GraveListBlockWords is the size of a list of n blocks.
func GraveListBlockWords(n int) int { return WholeLines(GraveEntriesWord + n*graveListWords) }

// GraveAt is the word where grave i begins, and GraveListAt the word where entry i
// of a list does.
func GraveAt(i int) int     { return GraveEntriesWord + i*graveWords }
func GraveListAt(i int) int { return GraveEntriesWord + i*graveListWords }

// IsList reports whether the entries point to further blocks.
func (g Graves) IsList() bool { return g.list }

// Len is the number of entries.
func (g Graves) Len() int { return int(g.words[GraveCountWord]) }

// Grave is entry i of a block of graves.
func (g Graves) Grave(i int) Grave {
	w := g.words[GraveAt(i):]
	return Grave{w[0], block.CSN(w[1]), block.Older(w[2])}
}

// Block returns entry i of a list: a block of graves, and the newest deletion in it.
// A reader of that tick or a later one must not follow it.
func (g Graves) Block(i int) (at block.Older, newest block.CSN) {
	w := g.words[GraveListAt(i):]
	return block.Older(w[0]), block.CSN(w[1])
}

// GravesTag is word IDWord of a block of graves of the index, and GraveListTag
// that of a list of them.
func (l *Layout) GravesTag() uint64    { return gravesMagic<<32 | uint64(l.ID) }
func (l *Layout) GraveListTag() uint64 { return graveListMagic<<32 | uint64(l.ID) }
