package tables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"drtmx/internal/mem"
)

// Option is an option of Of: it changes the definition derived from the type.
type Option func(*mapping)

// WithPrimary sets the kind of the primary index; the default is Ordered.
func WithPrimary(k IndexKind) Option { return func(m *mapping) { m.def.Primary = k } }

// WithGrowth allows columns to be added to a table whose rows have one size; see
// Def.Grows.
func WithGrowth() Option { return func(m *mapping) { m.def.Grows = true } }

// WithLoadFill leaves places free in the leaves that loading makes; see Def.LoadFill.
func WithLoadFill(percent int) Option { return func(m *mapping) { m.def.LoadFill = percent } }

// WithTwin sets the twin of a table whose primary index is Hash; see Def.Twin.
func WithTwin(t Twin) Option { return func(m *mapping) { m.def.Twin = t } }

// WithEngine sets the engine of the primary index; see Def.Engine.
func WithEngine(e Engine) Option { return func(m *mapping) { m.def.Engine = e } }

// WithPartition sets how keys map to partitions; the default is ByHash.
func WithPartition(p Partitioning) Option { return func(m *mapping) { m.def.Partition = p } }

// WithIndex adds a secondary index over fields of the struct, in this order. Several
// rows may have the same values of these fields.
func WithIndex(name string, fields ...string) Option {
	return func(m *mapping) { m.wanted = append(m.wanted, indexed{name, fields}) }
}

// mapping describes a mapped struct. It is computed once, by reflection.
type mapping struct {
	def     Def
	goType  reflect.Type
	members []member
	keys    []int     // of members, in order
	wanted  []indexed // secondary indexes
	parts   [][]int   // of members, by secondary index
	faults  faults
	width   uint // bits of a number key
}

type indexed struct {
	name   string
	fields []string
}

func newMapping(t reflect.Type, name string, opts []Option) *mapping {
	m := &mapping{goType: t, def: Def{Name: name, Primary: Ordered, Partition: Partitioning{Kind: ByHash}}}
	if t.Kind() != reflect.Struct {
		m.faults.add("table %s: %v is no struct", name, t)
		return m
	}
	m.collect(t, 0)
	for _, o := range opts {
		o(m)
	}
	if len(m.keys) == 0 {
		m.faults.add("table %s: no field of %v is tagged as its key", name, t)
	}
	m.defineKey()
	m.defineIndexes()
	m.defineColumns()
	return m
}

// collect adds the exported fields of a struct and of its embedded structs.
func (m *mapping) collect(t reflect.Type, off uintptr) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("drtmx")
		if f.Anonymous && f.Type.Kind() == reflect.Struct && !tagged {
			m.collect(f.Type, off+f.Offset)
			continue
		}
		if tag == "-" || !f.IsExported() && !tagged {
			continue
		}
		b := member{name: f.Name, column: columnName(f.Name), off: off + f.Offset, kind: f.Type.Kind()}
		switch {
		case !f.IsExported():
			m.fault(&b, "is not exported")
			continue
		case !mapped(f.Type):
			m.fault(&b, "has the type %v, want an integer, bool, float, string or []byte", f.Type)
			continue
		}
		m.readTag(&b, tag)
		if b.key {
			m.keys = append(m.keys, len(m.members))
		}
		if at := slices.IndexFunc(m.members, func(o member) bool { return o.column == b.column }); at >= 0 {
			m.fault(&b, "has the column %s, as has %s", b.column, m.members[at].name)
		}
		m.members = append(m.members, b)
	}
}

func (m *mapping) fault(b *member, format string, args ...any) {
	m.faults.add("table %s: field %s of %v %s", m.def.Name, b.name, m.goType, fmt.Sprintf(format, args...))
}

func mapped(t reflect.Type) bool {
	switch k := t.Kind(); k {
	case reflect.Slice:
		return t.Elem().Kind() == reflect.Uint8
	case reflect.Uintptr:
		return false
	default:
		return k >= reflect.Bool && k <= reflect.Float64 || k == reflect.String
	}
}

// readTag parses a tag such as `drtmx:"key,name=column,size=40,index=by_name"`.
func (m *mapping) readTag(b *member, tag string) {
	for _, word := range strings.Split(tag, ",") {
		option, value, _ := strings.Cut(word, "=")
		switch option {
		case "":
		case "added":
			b.added = true
		case "default":
			b.added, b.value = true, []byte(value)
		case "key":
			if b.key = true; b.isFloat() {
				m.fault(b, "is a floating-point number, which cannot be in a key")
			}
		case "name":
			b.column = value
		case "size":
			n, err := strconv.Atoi(value)
			if b.size = n; err != nil || n < 1 || n > MaxText || !b.isText() {
				m.fault(b, "has size=%s, want 1 to %d, for a string or []byte", value, MaxText)
			}
		case "index":
			at := slices.IndexFunc(m.wanted, func(x indexed) bool { return x.name == value })
			if at < 0 {
				at = len(m.wanted)
				m.wanted = append(m.wanted, indexed{name: value})
			}
			m.wanted[at].fields = append(m.wanted[at].fields, b.name)
		default:
			m.fault(b, "has the tag %q, want key, name=, size=, index=, added, default= or -", word)
		}
	}
}

// columnName turns OwnerID into owner_id.
func columnName(name string) string {
	var b strings.Builder
	r := []rune(name)
	for i, c := range r {
		if i > 0 && unicode.IsUpper(c) && (unicode.IsLower(r[i-1]) || i+1 < len(r) && unicode.IsLower(r[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

// defineKey chooses a number key if the key's fields are integers of at most 64 bits
// together.
func (m *mapping) defineKey() {
	for _, i := range m.keys {
		if m.members[i].isText() {
			m.def.Key = StringKey
		}
		m.width += m.members[i].bits()
	}
	if m.width > 64 {
		m.def.Key = StringKey
	}
}

func (m *mapping) defineIndexes() {
	for _, w := range m.wanted {
		s := Secondary{Name: w.name, Partition: Partitioning{Kind: ByHash}}
		var parts []int
		for _, name := range w.fields {
			i := slices.IndexFunc(m.members, func(b member) bool { return b.name == name })
			if i < 0 || m.members[i].isFloat() {
				m.faults.add("table %s: index %s: %v has no field %s, or one of floating point", m.def.Name, w.name, m.goType, name)
				continue
			}
			m.members[i].stored = true // the engine computes entries from columns
			parts = append(parts, i)
			s.Key = append(s.Key, KeyPart{Column: m.members[i].column, How: Sorted})
		}
		s.Key = append(s.Key, KeyPart{Column: PrimaryKey, How: Sorted})
		m.parts = append(m.parts, parts)
		m.def.Secondary = append(m.def.Secondary, s)
	}
}

func (m *mapping) defineColumns() {
	since := 0
	for i := range m.members {
		if b := &m.members[i]; !b.key || b.stored {
			b.stored = true
			c := Column{Name: b.column, Type: b.columnType(), Size: b.size, Default: b.value}
			if b.added {
				since++
				c.Since = since
			}
			if b.added && b.key {
				m.fault(b, "is of the key, which cannot be added")
			}
			m.def.Columns = append(m.def.Columns, c)
		}
	}
	if len(m.def.Columns) == 0 { // a row has at least one
		m.def.Columns = []Column{{Name: "unused", Type: Int16}}
	}
}

// bind gives the members their fields in the rows of a table.
func (m *mapping) bind(t *Table) {
	for i := range m.members {
		if b := &m.members[i]; b.stored {
			b.field = t.fields[b.column]
		}
	}
}

// appendKey appends the first n fields of a string key. A text that is the last field
// of the key is appended unchanged; an earlier one is encoded as in AppendText.
func (m *mapping) appendKey(b []byte, s mem.Struct, n int) []byte {
	for i, at := range m.keys[:n] {
		switch f := &m.members[at]; {
		case f.isText() && i == len(m.keys)-1:
			b = append(b, f.text(s)...)
		case f.isText():
			b = AppendText(b, f.text(s))
		default:
			var v [8]byte
			binary.BigEndian.PutUint64(v[:], f.ordered(s)<<(64-f.bits()))
			b = append(b, v[:f.bits()/8]...)
		}
	}
	return b
}

// numberKey returns the lowest and the highest number key whose first n fields are
// those of s.
func (m *mapping) numberKey(s mem.Struct, n int) (lo, hi uint64) {
	width := uint(0)
	for _, at := range m.keys[:n] {
		f := &m.members[at]
		lo, width = lo<<f.bits()|f.ordered(s), width+f.bits()
	}
	rest := m.width - width
	lo <<= rest // by 64: 0
	return lo, lo | (uint64(1)<<rest - 1)
}

var errKeyCode = errors.New("its bytes are not those of the struct's key")

// decodeKey sets the key's fields.
func (m *mapping) decodeKey(s mem.Struct, k Key) error {
	err := errKeyCode
	switch {
	case !k.Is(m.def.Key):
	case m.def.Key == NumberKey:
		if m.decodeNumber(s, k.num) {
			err = nil
		}
	case m.decodeString(s, k.Bytes()):
		err = nil
	}
	if err != nil {
		return fmt.Errorf("%w %v: key %.80v of table %s: %w", ErrKey, m.goType, k, m.def.Name, err)
	}
	return nil
}

func (m *mapping) decodeNumber(s mem.Struct, n uint64) bool {
	for _, at := range slices.Backward(m.keys) {
		f := &m.members[at]
		if !f.setOrdered(s, n&(^uint64(0)>>(64-f.bits()))) {
			return false
		}
		n >>= f.bits()
	}
	return n == 0 || m.width == 64
}

func (m *mapping) decodeString(s mem.Struct, b []byte) bool {
	for i, at := range m.keys {
		switch f := &m.members[at]; {
		case f.isText() && i == len(m.keys)-1:
			f.setText(s, b)
			return true
		case f.isText():
			text, rest, ok := cutText(b)
			if !ok {
				return false
			}
			f.setText(s, text)
			b = rest
		default:
			n := int(f.bits() / 8)
			if len(b) < n {
				return false
			}
			var v [8]byte
			copy(v[8-n:], b[:n])
			if b = b[n:]; !f.setOrdered(s, binary.BigEndian.Uint64(v[:])) {
				return false
			}
		}
	}
	return len(b) == 0
}

// cutText is the inverse of AppendText.
func cutText(b []byte) (text, rest []byte, ok bool) {
	plain := true
	for i := 0; i+1 < len(b); i++ {
		switch {
		case b[i] != 0 && plain:
		case b[i] != 0:
			text = append(text, b[i])
		case b[i+1] == 1:
			if plain {
				text = b[:i]
			}
			return text, b[i+2:], true
		case b[i+1] == 0xff:
			if plain {
				text, plain = append(make([]byte, 0, len(b)), b[:i]...), false
			}
			text = append(text, 0)
			i++
		default:
			return nil, nil, false
		}
	}
	return nil, nil, false
}

// encode sets row to a row with the columns of s. It reuses the memory of row.
func (m *mapping) encode(row *Row, s mem.Struct, fixed int) {
	*row = append((*row)[:0], make(Row, fixed)...)
	for i := range m.members {
		if b := &m.members[i]; b.stored {
			b.encode(row, s)
		}
	}
}

func (m *mapping) decodeRow(s mem.Struct, r Row) error {
	for i := range m.members {
		if b := &m.members[i]; b.stored && !b.key && !b.decode(r, s) {
			return fmt.Errorf("%w %v: column %s of table %s holds what field %s does not", ErrRow, m.goType, b.column, m.def.Name, b.name)
		}
	}
	return nil
}
