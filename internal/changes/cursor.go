package changes

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"strconv"

	"drtmx/internal/block"
	"drtmx/internal/clock"
)

// from is where a cursor begins.
type from uint8

const (
	fromNow    from = iota // the moment at which a feed begins
	fromOldest             // where the logs begin
	fromTick               // after a tick
	fromPlace              // after some transactions of a tick, with places in the logs
)

// all is the number of a tick's transactions if the cursor is after all of them.
const all = math.MaxUint32

// Cursor is a place in the order of all changes. The zero Cursor is the moment at which
// a feed begins. Immutable.
type Cursor struct {
	from    from
	tick    clock.Tick
	n       uint32   // of the tick's transactions that lie before
	cluster uint32   // checksum of the incarnations of the servers
	at      []uint64 // by server: the log from there on has all records of what follows
}

// Oldest returns the cursor before the oldest changes that the logs have.
func Oldest() Cursor { return Cursor{from: fromOldest} }

// After returns the cursor after all changes of a tick.
func After(tick clock.Tick) Cursor { return Cursor{from: fromTick, tick: tick} }

// Tick returns the tick of a cursor that has one, 0 if it has none.
func (c Cursor) Tick() clock.Tick { return c.tick }

// Texts of cursors without a tick.
const (
	textNow    = "now"
	textOldest = "oldest"
	textPlace  = 'c' // before what is encoded
)

// maxServers bounds the servers of a cursor.
const maxServers = 1 << 12

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// String encodes the cursor, for ParseCursor: "now", "oldest", a tick, or letters and
// digits.
func (c Cursor) String() string {
	switch c.from {
	case fromNow:
		return textNow
	case fromOldest:
		return textOldest
	case fromTick:
		return strconv.FormatUint(uint64(c.tick), 10)
	}
	b := binary.AppendUvarint(nil, uint64(c.tick))
	b = binary.AppendUvarint(b, uint64(c.n))
	b = binary.LittleEndian.AppendUint32(b, c.cluster)
	b = binary.AppendUvarint(b, uint64(len(c.at)))
	for _, at := range c.at {
		b = binary.AppendUvarint(b, at)
	}
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	return string(textPlace) + base64.RawURLEncoding.EncodeToString(b)
}

// ParseCursor is the inverse of String. Its error is an ErrCursor.
func ParseCursor(s string) (Cursor, error) {
	switch {
	case s == textNow:
		return Cursor{}, nil
	case s == textOldest:
		return Oldest(), nil
	case s != "" && s[0] == textPlace:
		if c, ok := parsePlace(s[1:]); ok && c.String() == s {
			return c, nil
		}
	default:
		if n, err := strconv.ParseUint(s, 10, 64); err == nil && clock.Tick(n) <= block.MaxTick {
			return After(clock.Tick(n)), nil
		}
	}
	return Cursor{}, fmt.Errorf("%w: %.60q", ErrCursor, s)
}

func parsePlace(s string) (c Cursor, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) < 4 {
		return c, false
	}
	body := b[:len(b)-4]
	if binary.LittleEndian.Uint32(b[len(body):]) != crc32.Checksum(body, castagnoli) {
		return c, false
	}
	ok = true
	uint := func(most uint64) uint64 {
		v, n := binary.Uvarint(body)
		if n <= 0 || v > most {
			ok, body = false, nil
			return 0
		}
		body = body[n:]
		return v
	}
	c = Cursor{from: fromPlace, tick: clock.Tick(uint(uint64(block.MaxTick))), n: uint32(uint(all))}
	if len(body) < 4 {
		return c, false
	}
	c.cluster, body = binary.LittleEndian.Uint32(body), body[4:]
	for range uint(maxServers) {
		c.at = append(c.at, uint(math.MaxUint64))
		if !ok {
			break
		}
	}
	return c, ok && len(body) == 0
}

// clusterOf returns the checksum of the incarnations of all servers.
func clusterOf(incarnations []uint64) uint32 {
	var b []byte
	for _, n := range incarnations {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return crc32.Checksum(b, castagnoli)
}
