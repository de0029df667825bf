package tpcc

import "encoding/binary"

// AppendTo appends the encoding to b.
func (in *deliveryPart) AppendTo(b []byte) []byte {
	b = binary.AppendUvarint(b, codecVersion)
	for _, v := range [...]int64{in.W, in.Carrier, in.First, in.Last} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return binary.AppendVarint(b, in.Date)
}

// Decode is the inverse of AppendTo. It returns ErrInput for an input that the
// body cannot process.
func (in *deliveryPart) Decode(b []byte) error {
	d := decoder{b: b}
	d.version()
	in.W, in.Carrier = d.number(MaxWarehouses), d.number(MaxCarrier)
	in.First, in.Last = d.number(Districts), d.number(Districts)
	in.Date = d.signed()
	if err := d.end("a DELIVERY input"); err != nil {
		return err
	}
	return in.check()
}

// appendPart appends the O_IDs of the districts of a part.
func (out *DeliveryOutput) appendPart(b []byte, first, last int64) []byte {
	b = binary.AppendUvarint(b, codecVersion)
	for d := first; d <= last; d++ {
		b = binary.AppendUvarint(b, uint64(out.Orders[d-1]))
	}
	return b
}

// decodePart is the inverse of appendPart; other districts stay as they are.
func (out *DeliveryOutput) decodePart(b []byte, first, last int64) error {
	d := decoder{b: b}
	d.version()
	for n := first; n <= last; n++ {
		out.Orders[n-1] = d.number(MaxOrders)
	}
	return d.end("a DELIVERY output")
}

// AppendTo appends the encoding to b.
func (in *StockLevelInput) AppendTo(b []byte) []byte {
	b = binary.AppendUvarint(b, codecVersion)
	for _, v := range [...]int64{in.W, in.D, in.Threshold} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}

// Decode is the inverse of AppendTo. It returns ErrInput for an input that the
// body cannot process.
func (in *StockLevelInput) Decode(b []byte) error {
	d := decoder{b: b}
	d.version()
	in.W, in.D, in.Threshold = d.number(MaxWarehouses), d.number(Districts), d.number(MaxThreshold)
	if err := d.end("a STOCK-LEVEL input"); err != nil {
		return err
	}
	return in.check()
}

// AppendTo appends the encoding to b.
func (out *StockLevelOutput) AppendTo(b []byte) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(b, codecVersion), uint64(out.Low))
}

// Decode is the inverse of AppendTo.
func (out *StockLevelOutput) Decode(b []byte) error {
	d := decoder{b: b}
	d.version()
	out.Low = d.number(stockLevelOrders * MaxLines)
	return d.end("a STOCK-LEVEL output")
}
