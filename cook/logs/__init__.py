"""What server logs say of a draft: their lines, their requests, the figures made of them."""
