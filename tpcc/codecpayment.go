package tpcc

import "encoding/binary"

// appendCustomer appends a C_ID, or 0 and a C_LAST.
func appendCustomer(b []byte, c int64, last []byte) []byte {
	b = binary.AppendUvarint(b, uint64(c))
	if c == 0 {
		b = appendText(b, last)
	}
	return b
}

// customer is the inverse of appendCustomer, reusing last's memory.
func (d *decoder) customer(last []byte) (int64, []byte) {
	c := d.number(MaxCustomers)
	if c != 0 {
		return c, last[:0]
	}
	return 0, d.text(last, lastBytesMax)
}

// AppendTo appends the encoding to b.
func (in *PaymentInput) AppendTo(b []byte) []byte {
	b = binary.AppendUvarint(b, codecVersion)
	for _, v := range [...]int64{in.W, in.D, in.CW, in.CD, in.Amount} {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return appendCustomer(binary.AppendVarint(b, in.Date), in.C, in.Last)
}

// Decode is the inverse of AppendTo. It reuses the memory of Last and returns
// ErrInput for an input that the body cannot process.
func (in *PaymentInput) Decode(b []byte) error {
	d := decoder{b: b}
	d.version()
	in.W, in.D = d.number(MaxWarehouses), d.number(Districts)
	in.CW, in.CD = d.number(MaxWarehouses), d.number(Districts)
	in.Amount, in.Date = d.number(MaxPayment), d.signed()
	in.C, in.Last = d.customer(in.Last)
	if err := d.end("a PAYMENT input"); err != nil {
		return err
	}
	return in.check()
}

func (a *Address) appendTo(b []byte) []byte {
	for _, s := range [...][]byte{a.Street1, a.Street2, a.City, a.State, a.Zip} {
		b = appendText(b, s)
	}
	return b
}

func (d *decoder) address(a *Address) {
	for _, s := range [...]*[]byte{&a.Street1, &a.Street2, &a.City, &a.State, &a.Zip} {
		*s = d.text(*s, textBytesMax)
	}
}

// texts are the output's strings of at most textBytesMax bytes.
func (out *PaymentOutput) texts() [5]*[]byte {
	return [...]*[]byte{&out.First, &out.Middle, &out.Last, &out.Phone, &out.Credit}
}

// AppendTo appends the encoding to b.
func (out *PaymentOutput) AppendTo(b []byte) []byte {
	b = binary.AppendUvarint(b, codecVersion)
	b = binary.AppendUvarint(b, uint64(out.Customer))
	b = binary.AppendUvarint(b, uint64(out.Serial))
	b = out.Address.appendTo(out.District.appendTo(out.Warehouse.appendTo(b)))
	for _, s := range out.texts() {
		b = appendText(b, *s)
	}
	for _, v := range [...]int64{out.Since, out.CreditLim, out.Discount, out.Balance, out.Date} {
		b = binary.AppendVarint(b, v)
	}
	return appendText(b, out.Data)
}

// Decode is the inverse of AppendTo, reusing out's memory.
func (out *PaymentOutput) Decode(b []byte) error {
	d := decoder{b: b}
	d.version()
	out.Customer, out.Serial = d.number(MaxCustomers), d.number(MaxHistory)
	d.address(&out.Warehouse)
	d.address(&out.District)
	d.address(&out.Address)
	for _, s := range out.texts() {
		*s = d.text(*s, textBytesMax)
	}
	for _, v := range [...]*int64{&out.Since, &out.CreditLim, &out.Discount, &out.Balance, &out.Date} {
		*v = d.signed()
	}
	out.Data = d.text(out.Data, shownData)
	return d.end("a PAYMENT output")
}
