package tpcc

import (
	"encoding/binary"
	"fmt"
)

// Encodings of inputs and outputs begin with codecVersion. All numbers are
// varints, signed ones zigzag. A string follows its length.
const codecVersion = 1

// textBytesMax bounds strings in outputs; the longest is I_NAME.
const textBytesMax = 24

func appendText(b, s []byte) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// decoder reads values from the front of an encoding. After a value that is
// missing or out of bounds it sets fail and returns zeros.
type decoder struct {
	b    []byte
	fail bool
}

func (d *decoder) number(limit int64) int64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || v > uint64(limit) {
		d.b, d.fail = nil, true
		return 0
	}
	d.b = d.b[n:]
	return int64(v)
}

func (d *decoder) signed() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.b, d.fail = nil, true
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) text(dst []byte, limit int64) []byte {
	n := d.number(limit)
	if int64(len(d.b)) < n {
		d.b, d.fail = nil, true
		return dst[:0]
	}
	dst = append(dst[:0], d.b[:n]...)
	d.b = d.b[n:]
	return dst
}

func (d *decoder) version() { d.fail = d.number(codecVersion) != codecVersion || d.fail }

func (d *decoder) end(what string) error {
	if d.fail || len(d.b) > 0 {
		return fmt.Errorf("%w: %s cannot be decoded", ErrInput, what)
	}
	return nil
}

// AppendTo appends the encoding to b.
func (in *NewOrderInput) AppendTo(b []byte) []byte {
	b = binary.AppendUvarint(b, codecVersion)
	b = binary.AppendUvarint(b, uint64(in.W))
	b = binary.AppendUvarint(b, uint64(in.D))
	b = binary.AppendUvarint(b, uint64(in.C))
	b = binary.AppendVarint(b, in.EntryD)
	b = binary.AppendUvarint(b, uint64(len(in.Lines)))
	for _, l := range in.Lines {
		b = binary.AppendUvarint(b, uint64(l.Item))
		b = binary.AppendUvarint(b, uint64(l.SupplyW))
		b = binary.AppendUvarint(b, uint64(l.Quantity))
	}
	return b
}

// Decode is the inverse of AppendTo. It reuses the memory of Lines and returns
// ErrInput for an input that the body cannot process.
func (in *NewOrderInput) Decode(b []byte) error {
	d := decoder{b: b}
	d.version()
	in.W, in.D, in.C = d.number(MaxWarehouses), d.number(Districts), d.number(MaxCustomers)
	in.EntryD = d.signed()
	in.Lines = in.Lines[:0]
	for range d.number(MaxLines) {
		in.Lines = append(in.Lines, NewOrderLine{d.number(MaxItems), d.number(MaxWarehouses), d.number(10)})
	}
	if err := d.end("a NEW-ORDER input"); err != nil {
		return err
	}
	return in.check()
}

// AppendTo appends the encoding to b.
func (out *NewOrderOutput) AppendTo(b []byte) []byte {
	b = binary.AppendUvarint(b, codecVersion)
	b = binary.AppendUvarint(b, uint64(out.Order))
	b = binary.AppendVarint(b, out.EntryD)
	b = appendText(appendText(b, out.Last), out.Credit)
	for _, v := range [...]int64{out.Discount, out.WTax, out.DTax, out.Total, int64(len(out.Lines))} {
		b = binary.AppendVarint(b, v)
	}
	for i := range out.Lines {
		l := &out.Lines[i]
		b = appendText(b, l.Name)
		b = binary.AppendVarint(b, l.StockQuantity)
		b = append(b, l.Brand)
		b = binary.AppendVarint(b, l.Price)
		b = binary.AppendVarint(b, l.Amount)
	}
	return b
}

// Decode is the inverse of AppendTo, reusing out's memory.
func (out *NewOrderOutput) Decode(b []byte) error {
	d := decoder{b: b}
	d.version()
	out.Order = d.number(MaxOrders)
	out.EntryD = d.signed()
	out.Last, out.Credit = d.text(out.Last, textBytesMax), d.text(out.Credit, textBytesMax)
	out.Discount, out.WTax, out.DTax, out.Total = d.signed(), d.signed(), d.signed(), d.signed()
	n := d.signed()
	if n < 0 || n > MaxLines {
		n, d.fail = 0, true
	}
	out.resize(int(n))
	for i := range out.Lines {
		l := &out.Lines[i]
		l.Name = d.text(l.Name, textBytesMax)
		l.StockQuantity = d.signed()
		l.Brand = 0
		if len(d.b) > 0 {
			l.Brand, d.b = d.b[0], d.b[1:]
		}
		l.Price, l.Amount = d.signed(), d.signed()
	}
	return d.end("a NEW-ORDER output")
}

// AppendTo appends the encoding to b.
func (in *OrderStatusInput) AppendTo(b []byte) []byte {
	b = binary.AppendUvarint(b, codecVersion)
	b = binary.AppendUvarint(b, uint64(in.W))
	b = binary.AppendUvarint(b, uint64(in.D))
	return appendCustomer(b, in.C, in.Last)
}

// Decode is the inverse of AppendTo. It reuses the memory of Last and returns
// ErrInput for an input that the body cannot process.
func (in *OrderStatusInput) Decode(b []byte) error {
	d := decoder{b: b}
	d.version()
	in.W, in.D = d.number(MaxWarehouses), d.number(Districts)
	in.C, in.Last = d.customer(in.Last)
	if err := d.end("an ORDER-STATUS input"); err != nil {
		return err
	}
	return in.check()
}

// AppendTo appends the encoding to b.
func (out *OrderStatusOutput) AppendTo(b []byte) []byte {
	b = binary.AppendUvarint(b, codecVersion)
	b = binary.AppendUvarint(b, uint64(out.Customer))
	b = appendText(appendText(appendText(b, out.First), out.Middle), out.Last)
	for _, v := range [...]int64{out.Balance, out.Order, out.EntryD, out.Carrier, int64(len(out.Lines))} {
		b = binary.AppendVarint(b, v)
	}
	for i := range out.Lines {
		l := &out.Lines[i]
		for _, v := range [...]int64{l.SupplyW, l.Item, l.Quantity, l.Amount, l.DeliveryD} {
			b = binary.AppendVarint(b, v)
		}
	}
	return b
}

// Decode is the inverse of AppendTo, reusing out's memory.
func (out *OrderStatusOutput) Decode(b []byte) error {
	d := decoder{b: b}
	d.version()
	out.Customer = d.number(MaxCustomers)
	out.First, out.Middle, out.Last = d.text(out.First, textBytesMax), d.text(out.Middle, textBytesMax), d.text(out.Last, textBytesMax)
	out.Balance, out.Order, out.EntryD, out.Carrier = d.signed(), d.signed(), d.signed(), d.signed()
	n := d.signed()
	if n < 0 || n > MaxLines {
		n, d.fail = 0, true
	}
	out.Lines = out.Lines[:0]
	for range n {
		out.Lines = append(out.Lines, OrderStatusLine{d.signed(), d.signed(), d.signed(), d.signed(), d.signed()})
	}
	return d.end("an ORDER-STATUS output")
}
