package tables

import "strconv"

// An added column comes after all others, in the fixed part of the row and among the
// values after it. A row keeps the format in which it was written. The end of its
// fixed part, where its values begin or the row ends, determines the format. A
// transaction converts the rows that it reads to the format of the table that its
// body uses, and the rows that it writes to the present format.

// addedField is a column that was added, with its value in rows written before.
type addedField struct {
	Field
	value []byte
}

// defaultFits reports whether the default of a column is a value of its type.
func (c *Column) defaultFits() bool {
	d := string(c.Default)
	if c.Default == nil {
		return true
	}
	bits := map[Type]int{Int64: 64, Int32: 32, Int16: 16}[c.Type]
	var err error
	switch {
	case bits > 0:
		_, err = strconv.ParseInt(d, 10, bits)
	case c.Type == Float64:
		_, err = strconv.ParseFloat(d, 64)
	default:
		return len(d) <= c.Size || c.Type == Bytes && c.Size == 0 && len(d) <= MaxRowBytes/2
	}
	return err == nil
}

// set gives the column its default.
func (a *addedField) set(r *Row) {
	if a.value == nil {
		return
	}
	switch a.typ {
	case Text:
		r.SetText(a.Field, a.value)
	case Bytes:
		r.SetBytes(a.Field, a.value)
	case Float64:
		v, _ := strconv.ParseFloat(string(a.value), 64) // checked by defaultFits
		r.SetFloat(a.Field, v)
	default:
		v, _ := strconv.ParseInt(string(a.value), 10, 64)
		r.SetInt(a.Field, v)
	}
}

// format returns the size in bytes of the fixed part of a row, which may have any
// format of the layout.
func (l *layout) format(r Row) int {
	for _, fixed := range l.formats {
		if l.begin(r, fixed) == fixed {
			return fixed
		}
	}
	return l.fixed
}

// begin returns where the values of a row begin whose fixed part has at least fixed
// bytes, or the row's length if the columns of that part have no values.
func (l *layout) begin(r Row, fixed int) int {
	begin := len(r)
	for _, at := range l.at {
		if at >= fixed || fixed > len(r) {
			break
		}
		if off, n := (Field{off: at}).extent(r); n > 0 {
			begin = min(begin, off)
		}
	}
	return begin
}

// convert converts a row whose fixed part has from bytes to the format of l, which
// has more or fewer columns. It appends the result to arena, unless the row has that
// format already. In an unchecked row, values that lie outside the row are lost.
func (l *layout) convert(arena []byte, r Row, from int) (_ []byte, converted Row) {
	if from == l.fixed || from > len(r) {
		return arena, r
	}
	start := len(arena)
	both := min(from, l.fixed)
	arena = append(arena, r[:both]...)
	arena = append(arena, make([]byte, l.fixed-both)...)
	for _, at := range l.at {
		if at >= from {
			break
		}
		off, n := Field{off: at}.extent(r)
		if n == 0 || off > len(r)-n {
			setExtent(arena[start:], at, 0, 0)
			continue
		}
		setExtent(arena[start:], at, len(arena)-start, n)
		arena = append(arena, r[off:off+n]...)
	}
	arena = append(arena, make([]byte, roundUp(len(arena)-start)-(len(arena)-start))...)
	converted = Row(arena[start:len(arena):len(arena)])
	for i := range l.added {
		if a := &l.added[i]; a.off >= from {
			a.set(&converted)
		}
	}
	return arena, converted
}

// Upgrade returns a row of the table in the present format. It appends a row in an
// earlier format to arena to convert it, and returns any other row unchanged.
func (t *Table) Upgrade(arena []byte, r Row) ([]byte, Row) {
	if t.lay.formats == nil {
		return arena, r
	}
	return t.lay.convert(arena, r, t.lay.format(r))
}

// EarlierFormat reports whether o is the table before columns were added, so that rows for o
// have an earlier format.
func (t *Table) EarlierFormat(o *Table) bool { return t != o && t.lay.fixed != o.lay.fixed }

// ToEarlier converts a row of t in the present format to the format of the earlier
// definition o. It appends to arena as Upgrade does.
func (t *Table) ToEarlier(o *Table, arena []byte, r Row) ([]byte, Row) {
	return o.lay.convert(arena, r, t.lay.fixed)
}

// FromEarlier converts a row that was written with the earlier definition o to the
// present format.
func (t *Table) FromEarlier(o *Table, r Row) Row {
	_, row := t.lay.convert(nil, r, o.lay.fixed)
	return row
}

// MergeEarlier converts a row that was written with the earlier definition o to the present
// format. The columns that o lacks get their values from present, the row that it
// replaces.
func (t *Table) MergeEarlier(o *Table, r, present Row) Row {
	row := t.FromEarlier(o, r)
	for i := range t.lay.added {
		if a := &t.lay.added[i]; a.off >= o.lay.fixed {
			copyColumn(&row, a.Field, present, a.Field)
		}
	}
	return row
}

// Grows reports whether columns may be added to the table.
func (t *Table) Grows() bool { return t.lay.grows }

// HasEarlierRows reports whether rows of the index may have been written before columns
// were added.
func (ix *Index) HasEarlierRows() bool { return !ix.IsMaintained() && ix.Table.lay.formats != nil }

// ChangedIn returns the version of the catalogue that changed the table last.
// Transactions of an earlier version must not write it.
func (t *Table) ChangedIn() int { return t.since }

// copyColumn copies a column of one row to a column of another.
func copyColumn(dst *Row, to Field, src Row, from Field) {
	switch from.typ {
	case Text:
		dst.SetText(to, src.Text(from))
	case Bytes:
		dst.SetBytes(to, src.Bytes(from))
	case Float64:
		dst.SetFloat(to, src.Float(from))
	default:
		dst.SetInt(to, src.Int(from))
	}
}
